//! `hcomm bench`: every operation on both links, results right, figures readable.

use serde_json::Value;

use super::{HCOMM, command, hcomm, prints, scratch, stderr, stdout};

const OPERATIONS: [&str; 12] = [
    "all_reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
    "scan",
    "exscan",
    "barrier",
    "send_recv",
];

fn measured(link: &str) {
    for operation in OPERATIONS {
        let file = scratch(&format!("{link}-{operation}.json"));
        let path = file.to_str().unwrap();
        // A barrier has none.
        let sizes = if operation == "barrier" { &[][..] } else { &["-b", "8", "-e", "4K", "-f", "8"] };
        let arguments = ["bench", operation, "-n", "3", "--link", link];
        let more = ["--seconds", "0.01", "--check", "--json", path];
        let text = prints(&[&arguments[..], sizes, &more].concat());
        assert!(text.contains("# 0 wrong: every element right"), "{text}");
        let points: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(points.len(), if operation == "barrier" { 1 } else { 4 }, "{text}");
        for point in points {
            assert_eq!(point["peer"], "hcomm");
            assert_eq!((&point["link"], &point["op"]), (&link.into(), &operation.into()));
            assert_eq!((&point["ranks"], &point["wrong"]), (&3.into(), &0.into()));
            assert!(point["iters"].as_u64().unwrap() >= 7);
            let [median, p99] = ["median_us", "p99_us"].map(|key| point[key].as_f64().unwrap());
            assert!(0.0 < median && median <= p99, "{point}");
            assert!(point["cpu_us_per_op"].as_f64().unwrap() > 0.0, "{point}");
            assert!(point["bytes"].is_u64() && point["algorithm"].is_string(), "{point}");
        }
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn every_operation_from_one_buffer_to_another() {
    for operation in OPERATIONS {
        let into = ["bench", operation, "--into", "-n", "3", "--link", "memory"];
        let arguments = [&into[..], &["-b", "8", "-e", "4K", "-f", "8", "--iters", "7", "--check"]].concat();
        if ["broadcast", "barrier", "send_recv"].contains(&operation) {
            let arguments = ["bench", operation, "--into"];
            assert!(stderr(&hcomm(&arguments)).contains("has one buffer only"), "{operation}");
            continue;
        }
        for buffer in ["alloc", "vec", "slice"] {
            let text = prints(&[&arguments[..], &["--buffer", buffer]].concat());
            assert!(text.contains("# 0 wrong: every element right"), "{text}");
            assert!(text.contains("from one buffer to another"), "{text}");
        }
    }
}

#[test]
fn every_operation_over_shared_memory() {
    measured("shm");
}

/// What there is to be seen of a link is what it is, and not what was asked for.
#[test]
fn the_link_is_shown() {
    for (link, shown) in
        [("auto", "shared memory"), ("shm", "shared memory"), ("tcp", "TCP"), ("memory", "memory")]
    {
        let text = prints(&["bench", "all_reduce", "-e", "8", "--iters", "7", "--link", link]);
        assert!(text.contains(&format!(" 2 ranks, link {shown}, ")), "{text}");
    }
    for buffer in ["vec", "slice"] {
        let sizes = ["-b", "8", "-e", "1M", "-f", "64", "--iters", "7"];
        let text = prints(&[&["bench", "all_reduce", "--buffer", buffer][..], &sizes].concat());
        assert!(text.contains("# 0 wrong"), "{text}");
    }
}

#[test]
fn every_operation_over_memory() {
    measured("memory");
}

#[test]
fn every_operation_over_tcp() {
    measured("tcp");
}

#[test]
fn every_type_and_reduction() {
    for dtype in ["f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"] {
        let integers = ["bit_and", "bit_or", "bit_xor", "and", "or", "xor"];
        let integers = if dtype.contains('f') { &[][..] } else { &integers };
        for op in ["sum", "prod", "min", "max", "avg"].iter().chain(integers) {
            for (operation, ranks) in [("all_reduce", "3"), ("reduce_scatter", "4")] {
                let size = ["-b", "2K", "-e", "2K", "--iters", "1"];
                let what =
                    ["bench", operation, "--link", "memory", "-n", ranks, "--dtype", dtype, "--op", op];
                let text = prints(&[&what[..], &size].concat());
                assert!(text.contains("# 0 wrong"), "{text}");
            }
        }
    }
}

#[test]
fn every_algorithm() {
    for (operation, algorithms) in [
        (
            "all_reduce",
            &[
                "mesh-one-shot",
                "mesh-two-shot",
                "flat-tree",
                "recursive-doubling",
                "halving-doubling",
                "ring",
            ][..],
        ),
        ("broadcast", &["mesh-one-shot", "mesh-two-shot", "binomial-tree"]),
        ("all_gather", &["mesh-one-shot", "recursive-doubling", "ring"]),
        ("reduce_scatter", &["mesh-two-shot", "halving-doubling", "ring"]),
    ] {
        for algorithm in algorithms {
            let size = ["-b", "1K", "-e", "64K", "-f", "64", "--iters", "3", "--touch"];
            let what = ["bench", operation, "--link", "memory", "-n", "5", "--algorithm", algorithm];
            let text = prints(&[&what[..], &size].concat());
            assert_eq!(text.matches(algorithm).count(), 3, "{text}");
            assert!(text.contains("# 0 wrong"), "{text}");
        }
    }
}

#[test]
fn a_prepared_handle() {
    let text = prints(&["bench", "all_reduce", "--link", "memory", "-e", "1K", "--prepared", "--iters", "9"]);
    assert!(text.contains("prepared") && text.contains("# 0 wrong"), "{text}");
}

#[test]
fn under_a_launcher() {
    let text = prints(&["run", "-n", "2", "--", HCOMM, "bench", "all_reduce", "-e", "64", "--iters", "7"]);
    assert!(text.contains("[0] # hcomm ") && text.contains(" 2 ranks, link shared memory"), "{text}");
    assert!(!text.contains("[1] "), "{text}");
    let output = hcomm(&["run", "-n", "2", "--", HCOMM, "bench", "all_reduce", "-n", "3"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("-n 3, but the launcher has started 2 ranks"), "{output:?}");
}

#[test]
fn threads_of_one_process_are_no_ranks_of_a_launcher() {
    let bench = ["--", HCOMM, "bench", "all_reduce", "--link", "memory", "-e", "8", "--iters", "7"];
    let output = hcomm(&[&["run", "-n", "2"], &bench[..]].concat());
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{output:?}");
    assert!(stderr(&output).contains("but the launcher has started 2 ranks: leave --link out"), "{output:?}");
    let text = prints(&[&["run", "-n", "1"], &bench[..]].concat());
    assert!(text.contains("# 0 wrong"), "{text}");
}

/// Bytes of each size, and the line that tells of others that were asked for.
fn sizes(arguments: &str) -> (Vec<u64>, Option<String>) {
    let all = format!("bench {arguments} --link memory --iters 1");
    let text = prints(&all.split(' ').collect::<Vec<_>>());
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let bytes = rows.map(|line| line.split_whitespace().next().unwrap().parse().unwrap()).collect();
    let note = text.lines().find_map(|line| line.strip_prefix("# sizes are "));
    (bytes, note.map(Into::into))
}

#[test]
fn what_can_not_be_measured_is_rounded_and_told_but_never_beyond_the_largest() {
    assert_eq!(sizes("all_reduce -b 8 -e 128"), (vec![8, 32, 128], None));
    let down = "rounded down to multiples of 4 B (one f32)";
    assert_eq!(sizes("all_reduce -e 4"), (vec![4], None));
    assert_eq!(sizes("all_reduce -b 7 -e 7"), (vec![4], Some(down.into())));
    assert_eq!(sizes("broadcast -b 10 -e 50"), (vec![8, 40], Some(down.into())));
    let parts = "rounded down to multiples of 12 B (one f32 for each of 3 ranks)";
    assert_eq!(sizes("all_gather -n 3 -b 13 -e 52"), (vec![12, 48], Some(parts.into())));
    let up = format!("{parts}, and what is less up to one");
    assert_eq!(sizes("reduce_scatter -n 3 -b 8 -e 32"), (vec![12, 24], Some(up)));
    for (arguments, part) in [
        (
            "reduce_scatter -n 3 -b 8 -e 8",
            "-e 8: the smallest size of reduce_scatter is 12 B (one f32 for each",
        ),
        ("all_reduce -b 0 -e 3", "-e 3: the smallest size of all_reduce is 4 B (one f32)"),
        ("barrier -b 64", "-b: a barrier moves no data"),
        ("barrier --dtype f64", "--dtype: a barrier moves no data"),
    ] {
        for link in ["memory", "tcp"] {
            let file = scratch("refused.json");
            let all = format!("bench {arguments} --link {link} --json {}", file.display());
            let output = hcomm(&all.split(' ').collect::<Vec<_>>());
            assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{output:?}");
            assert!(stderr(&output).contains(part), "{output:?}");
            assert_eq!(stderr(&output).matches("hcomm: ").count(), 1, "{output:?}");
            assert!(!file.exists(), "{arguments}");
        }
    }
}

#[test]
fn nothing_is_measured_as_well() {
    for operation in ["all_reduce", "broadcast", "all_gather", "reduce_scatter", "send_recv"] {
        assert_eq!(sizes(&format!("{operation} -b 0 -e 0")), (vec![0], None));
        let unit = if operation == "all_gather" || operation == "reduce_scatter" { 8 } else { 4 };
        assert_eq!(sizes(&format!("{operation} -b 0 -e 31 -f 3")), (vec![0, unit, 3 * unit], None));
        let text = prints(&["bench", operation, "-b", "0", "-e", "0", "--iters", "7"]);
        assert!(text.contains("# 0 wrong") && !text.contains("NaN"), "{text}");
    }
}

#[test]
fn a_launcher_that_is_none_is_told_what_is_missing() {
    let output = command(&["bench", "all_reduce"]).env("RANK", "0").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(stderr(&output).contains("WORLD_SIZE is not set"), "{output:?}");
    assert_eq!(stdout(&output), "");
}

#[test]
fn a_report_file_that_can_not_be_opened_is_told_before_ranks_meet() {
    let mut rank = command(&["bench", "all_reduce"]);
    rank.envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")]);
    let output = rank.env("HCOMM_REPORT", "/no/such/folder/report").output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = stderr(&output);
    assert!(said.contains("HCOMM_REPORT=/no/such/folder/report: No such file"), "{said}");
}

#[test]
fn a_table_has_the_columns_that_say_something() {
    let of = |operation, size: &[&str]| {
        prints(&[&["bench", operation, "--link", "memory", "--iters", "7"], size].concat())
    };
    let text = of("barrier", &[]);
    let line = |with: &str| text.lines().find(|line| line.contains(with)).unwrap().split_whitespace();
    let columns = ["#", "time", "#wrong", "iters", "p50", "p99", "CPU/op", "extra", "mem", "algorithm"];
    assert_eq!(line("p50").collect::<Vec<_>>(), columns, "{text}");
    let row = text.lines().find(|line| !line.starts_with('#')).unwrap();
    assert_eq!(row.split_whitespace().nth(2), Some("7"), "{text}");
    assert!(!text.contains("f32") && !text.contains("busbw"), "{text}");
    let text = of("send_recv", &["-e", "8"]);
    assert!(text.contains("busbw") && text.contains("of f32") && !text.contains("chosen"), "{text}");
    let output = hcomm(&["bench", "broadcast", "--op", "max"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(stderr(&output).contains("--op max: broadcast reduces nothing"), "{output:?}");
}

/// What a terminal shows in the end of what was written to it, where lines are erased only as a whole.
fn on_screen(written: &str) -> String {
    let lines = written.lines().map(|line| line.rsplit("\r\x1b[K").next().unwrap_or(""));
    lines.map(|line| line.trim_end_matches('\r').to_string() + "\n").collect()
}

#[test]
fn a_terminal_shows_how_far_it_is_and_then_results_only() {
    // So large that the most iterations there are take longer than nothing is shown for.
    let measure = |link| ["bench", "all_reduce", "-b", "4M", "-e", "4M", "--seconds", "1", "--link", link];
    for link in ["memory", "tcp"] {
        let line = format!("{HCOMM} {}", measure(link).join(" "));
        // It gives the command a terminal, and writes down what that gets. Where it is missing there is nothing to see.
        let mut script = std::process::Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(std::process::Stdio::null());
        let Ok(output) = script.env("TERM", "xterm").env_remove("RANK").output() else {
            return;
        };
        let written = stdout(&output);
        assert!(output.status.success(), "{written}");
        assert!(written.contains("\r\x1b[K\x1b[?7l4194304 B, size 1 of 1: "), "{written:?}");
        let seen = on_screen(&written);
        assert!(seen.starts_with("# hcomm ") && seen.contains("\n# 0 wrong"), "{seen:?}");
        assert!(!seen.contains("size 1 of 1") && !seen.contains('\x1b'), "{seen:?}");
        let output = hcomm(&measure(link));
        assert_eq!((stderr(&output).as_str(), output.status.code()), ("", Some(0)));
    }
}

/// The columns are those of nccl-tests, and rates are what the size and the mean time make.
#[test]
fn columns_say_what_was_measured_and_agree_with_each_other() {
    for (operation, redop, ranks, bus) in [
        ("all_reduce", "max", 2, 1.0),
        ("all_reduce", "max", 4, 1.5),
        ("reduce_scatter", "max", 4, 0.75),
        ("all_gather", "none", 4, 0.75),
        ("broadcast", "none", 4, 1.0),
        ("send_recv", "none", 4, 1.0),
    ] {
        let file = scratch(&format!("columns-{operation}-{ranks}.json"));
        let [n, path] = [ranks.to_string(), file.to_str().unwrap().to_string()];
        let size = ["-b", "256K", "-e", "1M", "--iters", "9", "--dtype", "f64", "--touch", "--json", &path];
        let what = ["bench", operation, "--link", "memory", "-n", &n];
        let op = if redop == "none" { &[][..] } else { &["--op", redop][..] };
        let text = prints(&[&what[..], &size, op].concat());
        let head = text.lines().find(|line| line.contains("busbw")).unwrap();
        let head: Vec<&str> = head[1..].split_whitespace().collect();
        let columns =
            "size count type redop time algbw busbw #wrong iters p50 p99 CPU/op extra mem algorithm";
        assert_eq!(head.join(" "), columns, "{text}");
        let points: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        std::fs::remove_file(&file).unwrap();
        let rows: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!((rows.len(), points.len()), (2, 2), "{text}");
        for (bytes, (row, point)) in [262_144u64, 1_048_576].into_iter().zip(rows.iter().zip(&points)) {
            let number = |at: usize| row[at].parse::<f64>().unwrap();
            assert_eq!(row[..4], [&bytes.to_string(), &(bytes / 8).to_string(), "f64", redop], "{text}");
            assert_eq!(row[7..9], ["0", "9"], "{text}");
            let exact = bytes as f64 / point["mean_us"].as_f64().unwrap() / 1e3;
            // Two digits after the point are printed.
            assert!((number(5) - exact).abs() <= 0.0051, "algbw {exact}: {text}");
            assert!((number(6) - exact * bus).abs() <= 0.0051, "busbw {}: {text}", exact * bus);
            for (at, key) in [(4, "mean_us"), (9, "median_us"), (10, "p99_us"), (11, "cpu_us_per_op")] {
                let exact = point[key].as_f64().unwrap();
                assert!((number(at) - exact).abs() <= 0.51, "{key} {exact}: {text}");
            }
            assert_eq!(number(12) as u64, point["beyond_bytes"].as_u64().unwrap(), "{text}");
            assert_eq!(point["algorithm"].as_str(), row.get(13).copied(), "{text}");
            let redop = if redop == "none" { Value::Null } else { redop.into() };
            for (key, value) in [
                ("bytes", bytes.into()),
                ("dtype", "f64".into()),
                ("redop", redop),
                ("ranks", ranks.into()),
                ("iters", 9.into()),
                ("touch", true.into()),
                ("prepared", false.into()),
                ("link", "memory".into()),
            ] {
                assert_eq!(point[key], value, "{key}: {point}");
            }
        }
    }
}

/// With a time instead of a number, iterations go on until it is full, however long the first ones took.
#[test]
fn the_time_is_full_when_it_ends() {
    let file = scratch("seconds.json");
    let what = ["bench", "all_reduce", "--link", "memory", "-b", "256K", "-e", "256K", "--seconds", "0.2"];
    prints(&[&what[..], &["--json", file.to_str().unwrap()]].concat());
    let points: Vec<Value> = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    std::fs::remove_file(&file).unwrap();
    let [iters, mean] = ["iters", "mean_us"].map(|key| points[0][key].as_f64().unwrap());
    // Not one more call would have fitted.
    assert!((iters + 1.001) * mean >= 0.2e6 || iters == 20_000.0, "{}", points[0]);
    let largest = prints(&["bench", "--help"]);
    assert!(largest.contains("[default: 256M]"), "{largest}");
}
