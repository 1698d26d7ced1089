
val add : int -> int -> int

module Nat :
 sig
 end

type store = { last : int; lease : (int -> int option) }

type event =
| Grant of int
| Settle of int * int
| Renew of int * int
| Reap of int
| Restart of int

val empty : store

val set : int -> int option -> store -> store

val is_valid : store -> int -> int -> bool

val step : store -> event -> store
