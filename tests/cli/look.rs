//! `hcomm plan`, `hcomm why`, help and wrong arguments.

use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

use hcomm::{Rank, Report, Seq};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{command, hcomm, prints, scratch, stderr, stdout};

#[test]
fn a_plan_is_printed_explained_and_drawn() {
    let file = scratch("plan.svg");
    let what = ["plan", "all_reduce", "-n", "4", "--algorithm", "ring", "--count", "1000"];
    let text = prints(&[&what[..], &["--svg", file.to_str().unwrap()]].concat());
    assert!(text.starts_with("all_reduce by ring on 4 ranks: 1000 elements"), "{text}");
    assert!((0..4).all(|rank| text.contains(&format!("\nrank {rank}"))), "{text}");
    assert!(text.contains("\ncost: ") && text.contains("\nverified: fingerprint "), "{text}");
    let picture = std::fs::read_to_string(&file).unwrap();
    assert!(picture.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\""));
    well_formed(&picture);
    std::fs::remove_file(file).unwrap();
}

/// Every element that is opened is closed, in order.
fn well_formed(xml: &str) {
    let mut open = Vec::new();
    for tag in xml.split('<').skip(1) {
        let (tag, text) = tag.split_once('>').unwrap();
        assert!(!text.contains('>'), "{tag}: {text}");
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn without_an_algorithm_the_chosen_one_is_drawn() {
    let text = prints(&["plan", "broadcast", "-n", "3", "--root", "2", "--count", "10"]);
    assert!(text.starts_with("broadcast from rank 2 by mesh"), "{text}");
    let text = prints(&["plan", "reduce", "-n", "3", "--root", "1", "--into", "--count", "10"]);
    assert!(text.starts_with("reduce to rank 1, out of place by flat-tree on 3 ranks"), "{text}");
    assert!(text.contains("send #0 to 1 from input"), "{text}");
    let text = prints(&["plan", "all_gather", "-n", "3"]);
    assert!(text.contains("1002 elements"), "{text}");
    let text = prints(&["plan", "barrier", "-n", "2"]);
    assert!(text.starts_with("A barrier is an all_reduce of one byte"), "{text}");
    assert!(text.contains(" 1 message, 1 byte sent") && text.contains("γ: of a byte reduced"), "{text}");
    assert!(!stdout(&hcomm(&["plan", "--help"])).contains("send_recv"));
    assert!(text.contains("1 element"), "{text}");
}

/// As it comes, and as ranks that share one processor would take it: what is drawn is what runs.
#[test]
fn the_chosen_one_is_that_of_ranks_on_this_machine() {
    let processors = std::thread::available_parallelism().unwrap().get();
    for ranks in [3, 8] {
        let expected = if ranks > processors { "flat-tree" } else { "mesh-one-shot" };
        let ranks = ranks.to_string();
        let shared = prints(&["plan", "all_reduce", "-n", &ranks, "--count", "2"]);
        assert!(shared.starts_with("all_reduce by mesh-one-shot on"), "{shared}");
        assert!(shared.contains(", through shared memory\n"), "{shared}");
        let text = prints(&["plan", "all_reduce", "-n", &ranks, "--link", "tcp", "--count", "2"]);
        assert!(text.starts_with(&format!("all_reduce by {expected} on")), "{text}");
        let facts = format!("\nchosen for {ranks} ranks on one host with {processors} processor");
        assert!(text.contains(&facts) && text.contains(", over TCP\n"), "{text}");
    }
    let crowded = std::thread::spawn(|| {
        let mut one = CpuSet::new();
        let all = sched_getaffinity(None).unwrap();
        one.set((0..CpuSet::MAX_CPU).find(|processor| all.is_set(*processor)).unwrap());
        sched_setaffinity(None, &one).unwrap();
        let planned = prints(&["plan", "all_reduce", "-n", "3", "--link", "tcp", "--count", "2"]);
        let run = prints(&["bench", "all_reduce", "-n", "3", "--link", "tcp", "-e", "8", "--iters", "7"]);
        (planned, run)
    });
    let (planned, run) = crowded.join().unwrap();
    assert!(planned.starts_with("all_reduce by flat-tree on 3 ranks"), "{planned}");
    assert!(planned.contains("\nchosen for 3 ranks on one host with 1 processor, over TCP\n"), "{planned}");
    assert!(planned.contains("few ranks, but more than processors"), "{planned}");
    assert!(run.contains(" flat-tree"), "{run}");
}

#[test]
fn the_chosen_one_depends_on_the_link() {
    let text = prints(&["plan", "all_reduce", "-n", "2", "--link", "memory", "--count", "2"]);
    assert!(text.starts_with("all_reduce by mesh-two-shot on 2 ranks"), "{text}");
    assert!(text.contains("\nchosen for 2 ranks of one process\n"), "{text}");
    assert!(
        prints(&["bench", "all_reduce", "--link", "memory", "-e", "8", "--iters", "7"])
            .contains(" mesh-two-shot")
    );
    let asked = prints(&["plan", "all_reduce", "-n", "2", "--algorithm", "ring"]);
    assert!(!asked.contains("chosen for"), "{asked}");
}

#[test]
fn where_no_operation_has_failed_it_says_where_errors_are() {
    let file = scratch("empty.jsonl");
    std::fs::write(&file, "").unwrap();
    let path = file.to_str().unwrap();
    let output = hcomm(&["why", path]);
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(
        told.starts_with(&format!("hcomm: no report in {path}: operations write one that fail by")),
        "{told}"
    );
    assert!(told.contains("Errors of set-up") && told.contains("in the output of the ranks only"), "{told}");
    let told = stderr(&command(&["why", path, "-"]).stdin(Stdio::null()).output().unwrap());
    assert!(told.starts_with(&format!("hcomm: no report in {path}, standard input: ")), "{told}");
    std::fs::remove_file(file).unwrap();
}

fn report(rank: u32, cause: &str) -> Report {
    let mut told = Report::default();
    (told.operation, told.seq, told.communicator) = ("all_reduce".into(), Seq(42), "dp".into());
    (told.rank, told.waited, told.late) = (Rank(rank), Duration::from_millis(12_300), vec![Rank(2)]);
    told.states = vec![(Rank(2), "is at #40 and has not called #42 (told 200.0ms ago)".into())];
    told.cause = cause.into();
    told
}

#[test]
fn a_report_is_told() {
    let file = scratch("report.jsonl");
    let json = |rank| serde_json::to_string(&report(rank, "")).unwrap();
    std::fs::write(&file, format!("{}\n{}\n{{\"oper", json(0), json(1))).unwrap();
    let output = hcomm(&["why", file.to_str().unwrap()]);
    assert!(output.status.success(), "{output:?}");
    assert!(stderr(&output).contains("line 3 is no JSON"), "{output:?}");
    let text = stdout(&output);
    for part in [
        "On communicator \"dp\":",
        "rank 1 has waited 12.3s in all_reduce #42 for rank 2",
        "rank 2 is at #40 and has not called #42",
        "rank 2: the program has not come to this call",
        "What to do next:",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn reports_come_from_standard_input_too() {
    let mut child = command(&["why", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let reports = serde_json::json!({ "reports": [report(0, "do the tags differ?")] });
    child.stdin.take().unwrap().write_all(reports.to_string().as_bytes()).unwrap();
    let text = stdout(&child.wait_with_output().unwrap());
    assert!(text.contains("- do the tags differ?"), "{text}");
}

/// Each rank has written its own, as on machines of their own.
#[test]
fn several_files_are_read_in_order() {
    let files = ["one.jsonl", "other.jsonl"].map(scratch);
    for (rank, file) in (0..).zip(&files) {
        std::fs::write(file, serde_json::to_string(&report(rank, "")).unwrap() + "\nnonsense").unwrap();
    }
    let [one, other] = files.each_ref().map(|file| file.to_str().unwrap());
    let output = hcomm(&["why", one, other]);
    let (text, told) = (stdout(&output), stderr(&output));
    assert!(text.contains("rank 0 has waited 12.3s") && text.contains("rank 1 has waited 12.3s"), "{text}");
    let each = [one, other].map(|file| format!("hcomm: {file}: line 2 is no JSON: nonsense\n"));
    assert_eq!(told, each.concat());
    for file in &files {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn wrong_arguments_are_told_what_is_possible() {
    for (arguments, part) in [
        (
            "plan broadcast -n 4 --algorithm ring",
            "ring has no broadcast; there are mesh-one-shot, mesh-two-shot, binomial",
        ),
        ("plan all_reduce -n 4 --algorithm foo", "possible values: mesh-one-shot"),
        ("plan all_gather -n 3 --count 10", "--count 10 is no multiple of -n 3"),
        ("plan broadcast -n 3 --root 3", "there is no rank 3 among 3"),
        ("plan all_reduce -n 65", "not a whole number from 1 to 64"),
        ("plan all_reduce -n -1", "not a whole number from 1 to 64"),
        ("plan broadcast -n 2 --root x", "not a whole number from 0 to 63"),
        ("plan send_recv -n 2", "invalid value 'send_recv'"),
        ("plan all_reduce -n 2 --count -1", "not a whole number"),
        ("bench nothing", "possible values: all_reduce, broadcast"),
        ("bench all_reduce -b 1X", "not a whole number such as 8, 64K"),
        ("bench all_reduce -b 2M -e 1M", "-b 2097152 is more than -e 1048576"),
        ("bench all_reduce -n x", "invalid value 'x' for '--ranks <N>': not a whole number from 1 to 64"),
        ("bench all_reduce -f 1", "not a whole number of 2 or more"),
        ("bench all_reduce -f 1.5", "not a whole number of 2 or more"),
        ("bench all_reduce --dtype f80", "possible values: f32"),
        ("bench all_reduce --seconds -1", "not a number of seconds from 0 to 86400"),
        ("bench barrier --prepared", "--prepared: barrier has no prepared handle"),
        ("bench barrier --algorithm ring", "barrier has no choice"),
        ("bench broadcast --algorithm ring", "ring has no broadcast"),
        ("bench send_recv --algorithm ring", "send_recv has no algorithm"),
        ("bench all_reduce --json /nonexistent/file", "can't write /nonexistent/file"),
        ("plan all_reduce -n 2 --svg /nonexistent/file", "can't write /nonexistent/file"),
        ("plan all_reduce -n 3 --root 1", "--root: all_reduce has none"),
        ("plan broadcast -n 3 --into", "--into: broadcast has one buffer only"),
        ("bench scan --op avg", "the ranks before one differ in number"),
        (
            "bench all_reduce --op bit_xor",
            "--op bit_xor is not for f32: give --dtype one of i8, i16, i32, i64, u8, u16, u32, u64",
        ),
        ("bench reduce --op and --dtype bf16", "--op and is not for bf16: give --dtype one of i8, i16"),
        ("run -n 65 true", "not a whole number from 1 to 64"),
        ("run -n 0 true", "not a whole number from 1 to 64"),
        ("run -np 2 true", "mpirun's -np is -n here, as in -n 4"),
        ("run -n 2 --verbose -- true", "unexpected argument '--verbose'"),
        ("run -n 2 -x true", "unexpected argument '-x'"),
        ("run -n 2 --keepgoing -- true", "a similar argument exists: '--keep-going'"),
        ("run -n 2", "<CMD>"),
        ("run true", "--ranks"),
        ("why /nonexistent", "can't read /nonexistent"),
        ("nothing", "unrecognized subcommand"),
    ] {
        let output = hcomm(&arguments.split(' ').collect::<Vec<_>>());
        let told = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments}: {told}");
        assert!(told.starts_with("hcomm: ") && told.contains(part), "{arguments}: {told}");
        assert_eq!(stdout(&output), "", "{arguments}");
        assert!(!told.contains("panicked"), "{told}");
    }
}

/// As `hcomm … | head` does it, but closed before the first byte.
#[test]
fn a_closed_output_is_no_failure() {
    let file = scratch("closed.jsonl");
    std::fs::write(&file, serde_json::to_string(&report(0, "")).unwrap()).unwrap();
    let why = format!("why {}", file.display());
    let bench = "bench all_reduce -e 8 --iters 7 --link";
    for arguments in
        ["plan barrier -n 4", &why, &format!("{bench} memory"), &format!("{bench} tcp"), "--help"]
    {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output =
            command(&arguments.split(' ').collect::<Vec<_>>()).stdout(writer).stderr(Stdio::piped()).output();
        let output = output.unwrap();
        assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""), "{arguments}");
    }
    std::fs::remove_file(file).unwrap();
}

#[test]
fn an_output_that_takes_nothing_is_told() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let output =
        command(&["plan", "barrier", "-n", "2"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).starts_with("hcomm: can't write to standard output: "), "{output:?}");
}

/// Messages, too, may have no reader.
#[test]
fn closed_messages_are_no_panic() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command(&["plan", "all_reduce", "-n", "65"]).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn help_has_examples() {
    for command in
        [&["--help"][..], &["run", "--help"], &["bench", "--help"], &["plan", "--help"], &["why", "--help"]]
    {
        let text = prints(command);
        assert!(text.contains("Examples:\n  ") && text.contains("hcomm "), "{text}");
        assert!(!text.contains("__guard"), "{text}");
    }
    let text = prints(&["plan", "--help"]).split_whitespace().collect::<Vec<_>>().join(" ");
    for word in ["#0 of 1 ", "scratch 0 ", "finish ", "place #0 of 1 ", "fewer than a granule"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(prints(&["--version"]).starts_with("hcomm 0."));
    assert_eq!(hcomm(&[]).status.code(), Some(2));
}
