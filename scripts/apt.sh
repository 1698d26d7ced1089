# For the scripts beside it, which source this: packages of the system by apt-get, if that asks for no password.

# Return whether packages may be installed; then $as precedes a command of the administrator.
may_install() {
    as=""
    if [ -n "${NO_APT:-}" ] || ! command -v apt-get >/dev/null 2>&1; then
        return 1
    elif [ "$(id -u)" -eq 0 ]; then
        as="env"
    elif sudo -n true >/dev/null 2>&1; then
        as="sudo -n env"
    else
        return 1
    fi
}

# Install packages; to be called once they may be.
install_packages() {
    echo "Installing $* ..." >&2
    $as DEBIAN_FRONTEND=noninteractive apt-get update -qq -o Acquire::Retries=1 >/dev/null 2>&1 </dev/null
    $as DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 </dev/null
}
