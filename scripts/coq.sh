#!/bin/sh
# See that there is Coq, with its checker and an OCaml compiler; fails with a hint if there is none.
set -u

has_coq() { command -v coqc && command -v coqchk && command -v ocamlopt; } >/dev/null 2>&1
has_coq && exit 0

. "$(dirname "$0")/apt.sh"
may_install && install_packages coq ocaml
has_coq && exit 0
echo "The proofs need Coq 8.16 (coqc, coqchk) and ocamlopt. On Debian or Ubuntu:" >&2
echo "    sudo apt-get install --no-install-recommends coq ocaml" >&2
echo "Elsewhere: https://coq.inria.fr/download. All other targets do without." >&2
exit 1
