#!/bin/sh
# See that there is a server to test with, redis-server or pgbouncer; never fails, since the tests do without.
# The tests start servers of their own on free local ports: the system's service is not started.
set -u

PATH=$PATH:/usr/sbin
program=$1
command -v "$program" >/dev/null 2>&1 && exit 0

hint="No $program: the tests that need one are skipped. On Debian or Ubuntu: sudo apt-get install $program"

. "$(dirname "$0")/apt.sh"
if ! may_install; then
    echo "$hint" >&2
    exit 0
fi

# While this file says 101, packages do not start the services they bring.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '$as rm -f "$policy"' EXIT
    trap 'exit 1' INT TERM
    $as sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy" || true
fi
install_packages "$program"
command -v "$program" >/dev/null 2>&1 || echo "$hint" >&2
exit 0
