//! `hcomm run`: environment, output, exit codes, signals, nothing left behind.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{command, hcomm, scratch, stderr, stdout};

/// Something that does not end within this time is taken to hang.
const HANGS: Duration = Duration::from_secs(30);

fn sh(ranks: &str, script: &str) -> std::process::Output {
    hcomm(&["run", "-n", ranks, "--", "sh", "-c", script])
}

fn start(ranks: &str, script: &str) -> Child {
    let mut command = command(&["run", "-n", ranks, "--", "sh", "-c", script]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// The first lines of a stream, without the ranks before them.
fn lines(stream: &mut impl BufRead, count: usize) -> Vec<String> {
    let line = |_| {
        let mut line = String::new();
        assert_ne!(stream.read_line(&mut line).unwrap(), 0, "ended early");
        line.split_once("] ").unwrap_or_else(|| panic!("{line:?} has no rank")).1.trim().to_owned()
    };
    (0..count).map(line).collect()
}

/// Waits until none of the processes runs; one that nobody has buried does not.
fn gone(processes: &[String]) {
    let runs = |id: &String| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
    };
    let start = Instant::now();
    while processes.iter().any(runs) {
        assert!(start.elapsed() < HANGS, "{processes:?} are still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ranks_get_their_environment() {
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${#HCOMM_TOKEN}
        echo $(stat -c %a $(dirname ${HCOMM_RENDEZVOUS#file:})) $((MASTER_PORT > 0))";
    let output = sh("3", script);
    assert!(output.status.success(), "{output:?}");
    let text = stdout(&output);
    for rank in 0..3 {
        assert!(text.contains(&format!("[{rank}] {rank}/3 {rank}/3 127.0.0.1 64\n")), "{text}");
        assert!(text.contains(&format!("[{rank}] 700 1\n")), "{text}");
    }
}

/// As options may be written, and without `--`: from the program on, they are its own.
#[test]
fn the_number_may_be_attached_and_the_program_keeps_its_options() {
    let script = ["sh", "-c", "echo $WORLD_SIZE \"$@\"", "-n9", "--keepgoing", "-x", "--", "-n", "3"];
    for number in [&["-n1"][..], &["-n=1"], &["--ranks=1"], &["-n", "1"], &["-n1", "--"], &["-n=1", "--"]] {
        let output = hcomm(&[&["run"], number, &script].concat());
        assert!(output.status.success(), "{number:?}: {output:?}");
        assert_eq!(stdout(&output), "[0] 1 --keepgoing -x -- -n 3\n", "{number:?}");
    }
}

#[test]
fn ranks_share_one_meeting_place_that_is_removed() {
    let text = stdout(&sh("2", "echo $HCOMM_RENDEZVOUS $HCOMM_TOKEN"));
    let each: Vec<&str> = text.lines().map(|line| line.split_once(' ').unwrap().1).collect();
    assert_eq!(each.len(), 2);
    assert_eq!(each[0], each[1]);
    let path = each[0].strip_prefix("file:").unwrap().split_once(' ').unwrap().0;
    assert!(!Path::new(path).parent().unwrap().exists(), "{path} is left");
}

#[test]
fn output_keeps_its_stream_its_order_and_its_bytes() {
    let script = r"printf 'one\n\ntw\377o\nlast'; echo three >&2";
    let output = hcomm(&["run", "-n", "1", "sh", "-c", script]);
    assert_eq!(output.stdout, b"[0] one\n[0] \n[0] tw\xffo\n[0] last\n");
    assert_eq!(output.stderr, b"[0] three\n");
}

#[test]
fn lines_of_many_ranks_stay_whole() {
    let script = "i=0; while [ $i -lt 500 ]; do echo line $RANK $i; i=$((i+1)); done";
    let text = stdout(&sh("3", script));
    for rank in 0..3 {
        let prefix = format!("[{rank}] ");
        let own: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&*prefix)).collect();
        let expected: Vec<String> = (0..500).map(|i| format!("line {rank} {i}")).collect();
        assert_eq!(own, expected);
    }
}

#[test]
fn a_line_without_end_is_cut() {
    let output = sh("1", "head -c 200000 /dev/zero | tr '\\0' x");
    let text = stdout(&output);
    assert_eq!(text.matches('x').count(), 200_000);
    assert!(text.lines().all(|line| line.starts_with("[0] x") && line.len() <= (64 << 10) + 4));
}

#[test]
fn the_first_rank_gets_the_input() {
    let mut command = command(&["run", "-n", "2", "cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"hello\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), "[0] hello\n");
}

#[test]
fn a_failing_rank_ends_all_and_gives_its_code() {
    let script = "if [ $RANK = 1 ]; then exit 7; fi; sleep 1000 & echo $$ $!; wait";
    let output = sh("3", script);
    assert_eq!(output.status.code(), Some(7));
    let told = stderr(&output);
    assert!(told.contains("hcomm: rank 1 exited with code 7\n"), "{told}");
    assert!(told.contains("hcomm: ranks 0, 2 still running: SIGTERM\n"), "{told}");
    let text = stdout(&output);
    let left: Vec<String> =
        text.split_whitespace().filter(|word| !word.starts_with('[')).map(Into::into).collect();
    assert_eq!(left.len(), 4, "{text}");
    gone(&left);
}

#[test]
fn the_others_may_report_what_they_saw() {
    let output = sh("2", "if [ $RANK = 0 ]; then exit 3; fi; sleep 0.2; echo rank 0 is lost; exit 4");
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output), "[1] rank 0 is lost\n");
}

#[test]
fn a_rank_that_is_killed_gives_128_and_the_signal() {
    let output = sh("2", "if [ $RANK = 1 ]; then kill -KILL $$; fi");
    assert_eq!(output.status.code(), Some(137));
    assert_eq!(stderr(&output), "hcomm: rank 1 was killed by signal 9 (SIGKILL)\n");
}

/// Rank 2 leaves early and without an error, and the others fail for it.
#[test]
fn who_had_ended_well_before_is_named() {
    let file = scratch("early");
    let script = format!(
        "if [ $RANK = 2 ]; then echo $$ > {0}; exit 0; fi
        until [ -s {0} ] && ! kill -0 $(cat {0}) 2>/dev/null; do sleep 0.01; done
        if [ $RANK = 0 ]; then sleep 0.3; fi; exit 1",
        file.display()
    );
    let output = sh("3", &script);
    fs::remove_file(file).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told = "hcomm: rank 1 exited with code 1\nhcomm: rank 2 had exited with code 0 before\n\
                hcomm: rank 0 exited with code 1\n";
    assert_eq!(stderr(&output), told);
}

/// The others outlive the time that they would have otherwise.
#[test]
fn the_others_go_on_if_asked() {
    let file = scratch("first");
    let script = format!(
        "if [ $RANK = 1 ]; then echo $$ > {0}; exit 7; fi
        until [ -s {0} ] && ! kill -0 $(cat {0}) 2>/dev/null; do sleep 0.01; done
        sleep 3; echo went on; if [ $RANK = 2 ]; then exit 9; fi",
        file.display()
    );
    let output = hcomm(&["run", "-n", "3", "--keep-going", "--", "sh", "-c", &script]);
    fs::remove_file(file).unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert_eq!(stderr(&output), "hcomm: rank 1 exited with code 7\nhcomm: rank 2 exited with code 9\n");
    let text = stdout(&output);
    assert!(text.contains("[0] went on\n") && text.contains("[2] went on\n"), "{text}");
}

#[test]
fn those_that_go_on_still_get_signals() {
    let script = "if [ $RANK = 0 ]; then exit 7; fi; sleep 1000 & echo $$; echo $!; wait";
    let mut command = command(&["run", "-n", "2", "--keep-going", "--", "sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert_eq!(line, "hcomm: rank 0 exited with code 7\n");
    let processes = lines(&mut BufReader::new(child.stdout.take().unwrap()), 2);
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(7));
    gone(&processes);
}

#[test]
fn what_cannot_be_started_is_told_once() {
    let output = hcomm(&["run", "-n", "3", "/nonexistent/program"]);
    assert_eq!(output.status.code(), Some(127));
    let told = stderr(&output);
    assert!(told.starts_with("hcomm: can't start rank 0, /nonexistent/program: "), "{told}");
    assert_eq!(told.lines().count(), 1);
    let told = stderr(&hcomm(&["run", "-n", "1", "no-such-program"]));
    assert!(told.ends_with("; one that is not in PATH is given as ./no-such-program\n"), "{told}");
}

#[test]
fn sigterm_ends_the_ranks_and_what_they_started() {
    let mut child = start("2", "sleep 1000 & echo $$; echo $!; wait");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let processes = lines(&mut output, 4);
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    gone(&processes);
}

#[test]
fn a_rank_may_save_its_work_on_sigint() {
    let mut child = start("2", "trap 'echo saved; exit 0' INT; echo ready; while :; do sleep 0.01; done");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    lines(&mut output, 2);
    send(&child, Signal::INT);
    assert_eq!(lines(&mut output, 2), ["saved", "saved"]);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_second_sigterm_kills() {
    let mut child = start("2", "trap '' TERM; echo $$; while :; do sleep 0.1; done");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let processes = lines(&mut output, 2);
    send(&child, Signal::TERM);
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert_eq!(line, "hcomm: SIGTERM: passed on to ranks 0, 1\n");
    send(&child, Signal::TERM);
    assert_ne!(child.wait().unwrap().code(), Some(0));
    told.read_to_string(&mut line).unwrap();
    assert!(line.contains("SIGTERM again: SIGKILL to ranks 0, 1\n"), "{line}");
    gone(&processes);
}

#[test]
fn ranks_do_not_outlive_a_killed_launcher() {
    let mut child = start("2", "sleep 1000 & echo $$; echo $!; echo ${HCOMM_RENDEZVOUS#file:}; wait");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let told = lines(&mut output, 6);
    let (paths, processes): (Vec<String>, Vec<String>) =
        told.into_iter().partition(|word| word.contains('/'));
    child.kill().unwrap();
    child.wait().unwrap();
    gone(&processes);
    let directory = Path::new(&paths[0]).parent().unwrap();
    let start = Instant::now();
    while directory.exists() {
        assert!(start.elapsed() < HANGS, "{directory:?} is left");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_closed_output_ends_ranks_that_write() {
    let mut child = start("1", "while echo more; do :; done");
    let mut output = BufReader::new(child.stdout.take().unwrap());
    lines(&mut output, 10);
    drop(output);
    assert_ne!(child.wait().unwrap().code(), Some(0));
}
