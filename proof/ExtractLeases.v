(** Leases as an OCaml program; natural numbers become ints. *)

Require Import Leases.
From Coq Require Import Extraction ExtrOcamlBasic ExtrOcamlNatInt.

Extraction Language OCaml.
Set Warnings "-extraction-default-directory".
Extraction "leases.ml" empty is_valid step.
