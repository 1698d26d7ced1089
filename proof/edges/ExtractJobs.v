(** The machine as an OCaml program; natural numbers become ints. A [world] keeps the records of its jobs. *)

Require Import Jobs Deadlocks Cycles.
From Coq Require Import Extraction ExtrOcamlBasic ExtrOcamlNatInt.

Extraction Language OCaml.
Set Warnings "-extraction-default-directory".
Extraction "jobs.ml" empty act revived_in_turn in_order.
