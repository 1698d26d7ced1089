#!/bin/sh
# See that there is Coq, with its checker and an OCaml compiler; fails with a hint if there is none.
set -u

has_coq() { command -v coqc && command -v coqchk && command -v ocamlopt; } >/dev/null 2>&1
has_coq && exit 0

if [ -n "${NO_APT:-}" ] || ! command -v apt-get >/dev/null 2>&1; then
    as=""
elif [ "$(id -u)" -eq 0 ]; then
    as="env"
elif sudo -n true >/dev/null 2>&1; then
    as="sudo -n env"
else
    as=""
fi
if [ -n "$as" ]; then
    echo "Installing coq ..." >&2
    $as DEBIAN_FRONTEND=noninteractive apt-get update -qq -o Acquire::Retries=1 >/dev/null 2>&1 </dev/null
    $as DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends coq ocaml \
        >/dev/null 2>&1 </dev/null
fi
has_coq && exit 0
echo "The proofs need Coq 8.16 (coqc, coqchk) and ocamlopt. On Debian or Ubuntu:" >&2
echo "    sudo apt-get install --no-install-recommends coq ocaml" >&2
echo "Elsewhere: https://coq.inria.fr/download. All other targets do without." >&2
exit 1
