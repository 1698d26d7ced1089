(* Reads a history, one operation a line, and prints after each the answer and the whole state of the proved trie.

   R                  begin anew
   E 1.2! 3?          a job with these claims is placed; ! is exclusive, ? is shared, a bare ! or ? is the root
   A 1.2 3            the line of a node is advanced, with a budget; a bare . is the root
   V 4                job 4 leaves, wherever its walks are *)

open Trie

let path text = if text = "" || text = "." then [] else List.map int_of_string (String.split_on_char '.' text)

let claim text =
  let last = String.length text - 1 in
  (path (String.sub text 0 last), text.[last] = '?')

let dotted p = if p = [] then "." else String.concat "." (List.map string_of_int p)

let out = Buffer.create 65536

let numbers l = String.concat "," (List.map string_of_int l)

let show st =
  List.iter (fun w -> Printf.bprintf out " %d:%d" w.of0.num w.pos) st.walks;
  let gates = List.sort compare (List.map (fun (p, x) -> (dotted p, x)) st.at_gates) in
  List.iter
    (fun (p, x) ->
      Printf.bprintf out " %s=%d,%d,%d,%d;%s%s" p x.held.nIS x.held.nIX x.held.nS x.held.nX
        (numbers (List.map (fun c -> c.num) x.line)) (if x.to_advance then "*" else ""))
    gates;
  (* What is proved of a state in which nothing is left over, tried on the program. *)
  if not (List.exists (fun (_, x) -> x.to_advance) st.at_gates) then
    if settled (List.map (fun w -> w.of0) st.walks) <> st.walks then Buffer.add_string out " UNSETTLED";
  Buffer.add_char out '\n'

let perform st line =
  match String.split_on_char ' ' line with
  | [ "R" ] -> Buffer.add_string out "R"; start
  | "E" :: claims -> Buffer.add_string out "E"; enqueue st (List.map claim claims)
  | [ "A"; p; budget ] ->
    let st, ((used, more), arrived) = advance st (path p) (int_of_string budget) in
    Printf.bprintf out "A %d %b [%s]" used more (numbers arrived);
    st
  | [ "V"; job ] -> Buffer.add_string out "V"; vacate st (int_of_string job)
  | _ -> failwith ("no operation: " ^ line)

let () =
  let st = ref start in
  (try
     while true do
       st := perform !st (input_line stdin);
       show !st;
       if Buffer.length out > 60000 then (print_string (Buffer.contents out); Buffer.clear out)
     done
   with End_of_file -> ());
  print_string (Buffer.contents out)
