(* Reads a history, one event a line, and prints after each what the proved model says of it.

   B                  begin anew
   G 4 17             job 4 is granted, by the token 17 of the store
   S 4 17             a settlement of job 4 with a token: whether it counts
   W 4 17             a renewal: whether its lease is there
   P 4                the lease of job 4 is reaped
   N 5                a restart, which leaves out tokens
   ?                  the jobs that are leased, each with its token

   Tokens of the store are any numbers; those of the model count. *)

open Leases

let none = 0
let out = Buffer.create 65536
let tokens : (int, int) Hashtbl.t = Hashtbl.create 64
let jobs : (int, unit) Hashtbl.t = Hashtbl.create 64
let token given = Option.value (Hashtbl.find_opt tokens given) ~default:none

let given_of token = Hashtbl.fold (fun given each found -> if each = token then given else found) tokens none

let show st =
  let ids = List.sort compare (Hashtbl.fold (fun j () l -> j :: l) jobs []) in
  List.iter (fun j -> match st.lease j with Some t -> Printf.bprintf out " %d:%d" j (given_of t) | None -> ()) ids

let answer name b = Printf.bprintf out "%s %b" name b

let perform st line =
  match String.split_on_char ' ' line with
  | [ "B" ] -> Hashtbl.reset tokens; Hashtbl.reset jobs; Buffer.add_string out "B"; empty
  | [ "G"; j; t ] ->
    let j = int_of_string j in
    let next = step st (Grant j) in
    Hashtbl.replace jobs j ();
    Hashtbl.replace tokens (int_of_string t) next.last;
    answer "G" (next.last > st.last);
    next
  | [ ("S" | "W") as name; j; t ] ->
    let j = int_of_string j and t = token (int_of_string t) in
    answer name (is_valid st j t);
    step st (if name = "S" then Settle (j, t) else Renew (j, t))
  | [ "P"; j ] -> Buffer.add_string out "P"; step st (Reap (int_of_string j))
  | [ "N"; n ] -> Buffer.add_string out "N"; step st (Restart (int_of_string n))
  | [ "?" ] -> Buffer.add_string out "?"; show st; st
  | _ -> failwith ("no event: " ^ line)

let () =
  let st = ref empty in
  (try
     while true do
       st := perform !st (input_line stdin);
       Buffer.add_char out '\n'
     done
   with End_of_file -> ());
  print_string (Buffer.contents out)
