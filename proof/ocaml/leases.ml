
(** val add : int -> int -> int **)

let rec add = (+)

module Nat =
 struct
 end

type store = { last : int; lease : (int -> int option) }

type event =
| Grant of int
| Settle of int * int
| Renew of int * int
| Reap of int
| Restart of int

(** val empty : store **)

let empty =
  { last = 0; lease = (fun _ -> None) }

(** val set : int -> int option -> store -> store **)

let set j x st =
  { last = st.last; lease = (fun k -> if (=) k j then x else st.lease k) }

(** val is_valid : store -> int -> int -> bool **)

let is_valid st j t =
  match st.lease j with
  | Some u -> (=) u t
  | None -> false

(** val step : store -> event -> store **)

let step st = function
| Grant j ->
  (match st.lease j with
   | Some _ -> st
   | None ->
     { last = (Stdlib.Int.succ st.last); lease =
       (set j (Some (Stdlib.Int.succ st.last)) st).lease })
| Settle (j, t) -> if is_valid st j t then set j None st else st
| Renew (_, _) -> st
| Reap j -> set j None st
| Restart n -> { last = (add st.last n); lease = st.lease }
