
(** val negb : bool -> bool **)

let negb = function
| true -> false
| false -> true

(** val fst : ('a1 * 'a2) -> 'a1 **)

let fst = function
| (x, _) -> x

(** val snd : ('a1 * 'a2) -> 'a2 **)

let snd = function
| (_, y) -> y

(** val length : 'a1 list -> int **)

let rec length = function
| [] -> 0
| _ :: l' -> Stdlib.Int.succ (length l')

(** val app : 'a1 list -> 'a1 list -> 'a1 list **)

let rec app l m =
  match l with
  | [] -> m
  | a :: l1 -> a :: (app l1 m)

(** val pred : int -> int **)

let pred = fun n -> Stdlib.max 0 (n-1)

(** val add : int -> int -> int **)

let rec add = (+)

(** val sub : int -> int -> int **)

let rec sub = fun n m -> Stdlib.max 0 (n-m)



module Nat =
 struct
  (** val ltb : int -> int -> bool **)

  let ltb n m =
    (<=) (Stdlib.Int.succ n) m
 end

(** val list_eq_dec : ('a1 -> 'a1 -> bool) -> 'a1 list -> 'a1 list -> bool **)

let rec list_eq_dec eq_dec l l' =
  match l with
  | [] -> (match l' with
           | [] -> true
           | _ :: _ -> false)
  | y :: l0 ->
    (match l' with
     | [] -> false
     | a :: l1 -> if eq_dec y a then list_eq_dec eq_dec l0 l1 else false)

(** val map : ('a1 -> 'a2) -> 'a1 list -> 'a2 list **)

let rec map f = function
| [] -> []
| a :: t -> (f a) :: (map f t)

(** val fold_left : ('a1 -> 'a2 -> 'a1) -> 'a2 list -> 'a1 -> 'a1 **)

let rec fold_left f l a0 =
  match l with
  | [] -> a0
  | b :: t -> fold_left f t (f a0 b)

(** val fold_right : ('a2 -> 'a1 -> 'a1) -> 'a1 -> 'a2 list -> 'a1 **)

let rec fold_right f a0 = function
| [] -> a0
| b :: t -> f b (fold_right f a0 t)

(** val existsb : ('a1 -> bool) -> 'a1 list -> bool **)

let rec existsb f = function
| [] -> false
| a :: l0 -> (||) (f a) (existsb f l0)

(** val filter : ('a1 -> bool) -> 'a1 list -> 'a1 list **)

let rec filter f = function
| [] -> []
| x :: l0 -> if f x then x :: (filter f l0) else filter f l0

(** val firstn : int -> 'a1 list -> 'a1 list **)

let rec firstn n l =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> [])
    (fun n0 -> match l with
               | [] -> []
               | a :: l0 -> a :: (firstn n0 l0))
    n

type path = int list

type claim = { num : int; job : int; path0 : path; shared : bool }

(** val depth : claim -> int **)

let depth c =
  length c.path0

(** val prefix : path -> path -> bool **)

let rec prefix p q =
  match p with
  | [] -> true
  | a :: p' ->
    (match q with
     | [] -> false
     | b :: q' -> (&&) ((=) a b) (prefix p' q'))

(** val conflict : claim -> claim -> bool **)

let conflict c d =
  (&&) ((||) (prefix c.path0 d.path0) (prefix d.path0 c.path0))
    (negb ((&&) c.shared d.shared))

type mode =
| IS
| IX
| Sh
| Ex

(** val fits : mode -> mode -> bool **)

let fits m n =
  match m with
  | IS -> (match n with
           | Ex -> false
           | _ -> true)
  | IX -> (match n with
           | IS -> true
           | IX -> true
           | _ -> false)
  | Sh -> (match n with
           | IS -> true
           | Sh -> true
           | _ -> false)
  | Ex -> false

(** val wants : claim -> int -> mode **)

let wants c i =
  if (=) i (depth c)
  then if c.shared then Sh else Ex
  else if c.shared then IS else IX

type walk = { of0 : claim; pos : int }

(** val eqb_path : path -> path -> bool **)

let eqb_path p q =
  if list_eq_dec (=) p q then true else false

(** val in_the_wayb : walk -> walk -> bool **)

let in_the_wayb u w =
  (&&)
    ((&&) ((&&) ((<=) w.pos (depth u.of0)) ((<=) w.pos (depth w.of0)))
      (eqb_path (firstn w.pos u.of0.path0) (firstn w.pos w.of0.path0)))
    ((||) ((=) u.pos w.pos)
      ((&&) (Nat.ltb w.pos u.pos)
        (negb (fits (wants u.of0 w.pos) (wants w.of0 w.pos)))))

(** val blockedb : walk list -> walk -> bool **)

let blockedb before w =
  existsb (fun u -> in_the_wayb u w) before

(** val walk_down : walk list -> claim -> int -> int -> int **)

let rec walk_down before c i n =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> i)
    (fun n' ->
    if blockedb before { of0 = c; pos = i }
    then i
    else walk_down before c (Stdlib.Int.succ i) n')
    n

(** val settled : claim list -> walk list **)

let settled cs =
  fold_left (fun s c ->
    app s ({ of0 = c; pos =
      (walk_down s c 0 (Stdlib.Int.succ (depth c))) } :: [])) cs []

type ask = path * bool

(** val leb_path : path -> path -> bool **)

let rec leb_path p q =
  match p with
  | [] -> true
  | a :: p' ->
    (match q with
     | [] -> false
     | b :: q' -> (||) (Nat.ltb a b) ((&&) ((=) a b) (leb_path p' q')))

(** val insert : ask -> ask list -> ask list **)

let rec insert c l = match l with
| [] -> c :: []
| d :: t -> if leb_path (fst c) (fst d) then c :: l else d :: (insert c t)

(** val sort : ask list -> ask list **)

let sort l =
  fold_right insert [] l

(** val merge : ask -> ask list -> ask list **)

let rec merge k = function
| [] -> k :: []
| c :: t ->
  if prefix (fst k) (fst c)
  then merge ((fst k), ((&&) (snd k) (snd c))) t
  else k :: (merge c t)

(** val normalise : ask list -> ask list **)

let normalise l =
  match sort l with
  | [] -> []
  | k :: t -> merge k t

type counts = { nIS : int; nIX : int; nS : int; nX : int }

(** val zero : counts **)

let zero =
  { nIS = 0; nIX = 0; nS = 0; nX = 0 }

(** val add0 : counts -> mode -> counts **)

let add0 h m =
  let { nIS = a; nIX = b; nS = c; nX = d } = h in
  (match m with
   | IS -> { nIS = (Stdlib.Int.succ a); nIX = b; nS = c; nX = d }
   | IX -> { nIS = a; nIX = (Stdlib.Int.succ b); nS = c; nX = d }
   | Sh -> { nIS = a; nIX = b; nS = (Stdlib.Int.succ c); nX = d }
   | Ex -> { nIS = a; nIX = b; nS = c; nX = (Stdlib.Int.succ d) })

(** val sub0 : counts -> mode -> counts **)

let sub0 h m =
  let { nIS = a; nIX = b; nS = c; nX = d } = h in
  (match m with
   | IS -> { nIS = (pred a); nIX = b; nS = c; nX = d }
   | IX -> { nIS = a; nIX = (pred b); nS = c; nX = d }
   | Sh -> { nIS = a; nIX = b; nS = (pred c); nX = d }
   | Ex -> { nIS = a; nIX = b; nS = c; nX = (pred d) })

(** val clashes : counts -> mode -> bool **)

let clashes h = function
| IS -> Nat.ltb 0 h.nX
| IX -> (||) (Nat.ltb 0 h.nS) (Nat.ltb 0 h.nX)
| Sh -> (||) (Nat.ltb 0 h.nIX) (Nat.ltb 0 h.nX)
| Ex ->
  (||) ((||) ((||) (Nat.ltb 0 h.nIS) (Nat.ltb 0 h.nIX)) (Nat.ltb 0 h.nS))
    (Nat.ltb 0 h.nX)

type gate = { held : counts; line : claim list; to_advance : bool }

(** val nothing : gate **)

let nothing =
  { held = zero; line = []; to_advance = false }

type gates = (path * gate) list

(** val find : gates -> path -> gate **)

let rec find g q =
  match g with
  | [] -> nothing
  | p0 :: t -> let (p, x) = p0 in if eqb_path q p then x else find t q

(** val is_empty : gate -> bool **)

let is_empty x =
  let { held = held0; line = line0; to_advance = _ } = x in
  let { nIS = nIS0; nIX = nIX0; nS = nS0; nX = nX0 } = held0 in
  ((fun fO fS n -> if n=0 then fO () else fS (n-1))
     (fun _ ->
     (fun fO fS n -> if n=0 then fO () else fS (n-1))
       (fun _ ->
       (fun fO fS n -> if n=0 then fO () else fS (n-1))
         (fun _ ->
         (fun fO fS n -> if n=0 then fO () else fS (n-1))
           (fun _ -> match line0 with
                     | [] -> true
                     | _ :: _ -> false)
           (fun _ -> false)
           nX0)
         (fun _ -> false)
         nS0)
       (fun _ -> false)
       nIX0)
     (fun _ -> false)
     nIS0)

(** val drop : gates -> path -> gates **)

let drop g q =
  filter (fun e -> negb (eqb_path q (fst e))) g

(** val put : gates -> path -> gate -> gates **)

let put g q x =
  if (&&) (is_empty x) (negb (eqb_path q []))
  then drop g q
  else (q, x) :: (drop g q)

(** val gate_of : claim -> int -> path **)

let gate_of c i =
  firstn i c.path0

(** val stops : gate -> mode -> bool **)

let stops x m =
  match x.line with
  | [] -> clashes x.held m
  | _ :: _ -> true

(** val walk_on : int -> gates -> claim -> int -> gates * int **)

let rec walk_on n g c i =
  (fun fO fS n -> if n=0 then fO () else fS (n-1))
    (fun _ -> (g, i))
    (fun n' ->
    let q = gate_of c i in
    let x = find g q in
    if stops x (wants c i)
    then ((put g q { held = x.held; line = (app x.line (c :: []));
            to_advance = x.to_advance }), i)
    else walk_on n'
           (put g q { held = (add0 x.held (wants c i)); line = x.line;
             to_advance = x.to_advance }) c (Stdlib.Int.succ i))
    n

type state = { at_gates : gates; walks : walk list; last_num : int;
               last_job : int }

(** val start : state **)

let start =
  { at_gates = (([], nothing) :: []); walks = []; last_num = 0; last_job = 0 }

(** val set_pos : int -> int -> walk list -> walk list **)

let set_pos n p s =
  map (fun w -> if (=) w.of0.num n then { of0 = w.of0; pos = p } else w) s

(** val place : state -> int -> path -> bool -> state **)

let place st j p sh =
  let c = { num = (Stdlib.Int.succ st.last_num); job = j; path0 = p; shared =
    sh }
  in
  let (g, i) = walk_on (Stdlib.Int.succ (depth c)) st.at_gates c 0 in
  { at_gates = g; walks = (app st.walks ({ of0 = c; pos = i } :: []));
  last_num = (Stdlib.Int.succ st.last_num); last_job = st.last_job }

(** val clear_to_advance : gates -> path -> gates **)

let clear_to_advance g q =
  let x = find g q in
  put g q { held = x.held; line = x.line; to_advance = false }

(** val advance_loop :
    int -> path -> int -> int -> int list -> state ->
    state * ((int * bool) * int list) **)

let rec advance_loop n q budget used arrived st =
  let x = find st.at_gates q in
  let over = ({ at_gates = (clear_to_advance st.at_gates q); walks =
    st.walks; last_num = st.last_num; last_job = st.last_job }, ((used,
    false), arrived))
  in
  ((fun fO fS n -> if n=0 then fO () else fS (n-1))
     (fun _ -> over)
     (fun n' ->
     match x.line with
     | [] -> over
     | c :: rest ->
       let m = wants c (length q) in
       if clashes x.held m
       then over
       else if (<=) budget used
            then (st, ((used, true), arrived))
            else let g1 =
                   put st.at_gates q { held = (add0 x.held m); line = rest;
                     to_advance = x.to_advance }
                 in
                 let (g2, p) =
                   walk_on (sub (depth c) (length q)) g1 c (Stdlib.Int.succ
                     (length q))
                 in
                 let st' = { at_gates = g2; walks =
                   (set_pos c.num p st.walks); last_num = st.last_num;
                   last_job = st.last_job }
                 in
                 let used' =
                   add used (Stdlib.Int.succ
                     (sub (Stdlib.min p (depth c)) (length q)))
                 in
                 advance_loop n' q budget used'
                   (if (=) p (Stdlib.Int.succ (depth c))
                    then app arrived (c.num :: [])
                    else arrived) st')
     n)

(** val advance :
    state -> path -> int -> state * ((int * bool) * int list) **)

let advance st q budget =
  advance_loop (length (find st.at_gates q).line) q budget 0 [] st

(** val recheck : int -> gate -> gate **)

let recheck i x =
  match x.line with
  | [] -> x
  | h :: _ ->
    if clashes x.held (wants h i)
    then x
    else { held = x.held; line = x.line; to_advance = true }

(** val without : int -> claim list -> claim list **)

let without n l =
  filter (fun c -> negb ((=) c.num n)) l

(** val left_at : claim -> int -> int -> gate -> gate **)

let left_at c p i x =
  if Nat.ltb i p
  then { held = (sub0 x.held (wants c i)); line = x.line; to_advance =
         x.to_advance }
  else { held = x.held; line = (without c.num x.line); to_advance =
         x.to_advance }

(** val leave_up : int -> gates -> claim -> int -> gates **)

let rec leave_up i g c p =
  let q = gate_of c i in
  let g' = put g q (recheck i (left_at c p i (find g q))) in
  ((fun fO fS n -> if n=0 then fO () else fS (n-1))
     (fun _ -> g')
     (fun i' -> leave_up i' g' c p)
     i)

(** val leave : state -> walk -> state **)

let leave st w =
  { at_gates =
    (leave_up (Stdlib.min w.pos (depth w.of0)) st.at_gates w.of0 w.pos);
    walks = (filter (fun v -> negb ((=) v.of0.num w.of0.num)) st.walks);
    last_num = st.last_num; last_job = st.last_job }

(** val enqueue : state -> ask list -> state **)

let enqueue st cs =
  let j = Stdlib.Int.succ st.last_job in
  fold_left (fun st0 e -> place st0 j (fst e) (snd e)) (normalise cs)
    { at_gates = st.at_gates; walks = st.walks; last_num = st.last_num;
    last_job = j }

(** val vacate : state -> int -> state **)

let vacate st j =
  fold_left leave (filter (fun w -> (=) w.of0.job j) st.walks) st
