//! What no compiler checks: layers, lengths, where unsafe code may be, what library code may not do.
//!
//! Source is read as text, with comments and literals blanked; that is enough for these rules and needs no parser.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lines of a file before its tests at most.
const FILE_LINES_MAX: usize = 600;
/// Lines of a function at most.
const FUNCTION_LINES_MAX: usize = 70;
/// Packages that somebody who depends on this crate gets, this one included.
const PACKAGES_MAX: usize = 50;

/// The modules and their levels. A module knows itself and those of lower levels.
const LEVELS: &[(&str, u32)] = &[
    ("element", 0),
    ("error", 0),
    ("rank", 0),
    ("group", 0),
    ("observe", 0),
    ("buffer", 1),
    ("kernel", 1),
    ("device", 1),
    ("runtime", 1),
    ("topology", 2),
    ("path", 3),
    ("link", 4),
    ("domain", 5),
    ("engine", 5),
    ("communicator", 6),
    ("scheduler", 6),
    ("overlap", 6),
    ("testing", 7),
];

/// Who knows a module of his own level, and why.
const SIBLINGS: &[(&str, &str, &str)] = &[
    ("error", "element", "errors name element types and reductions"),
    ("error", "rank", "errors name ranks, numbers and tags"),
    ("error", "observe", "a report has the last operations"),
    ("observe", "element", "operations have element types and reductions"),
    ("observe", "error", "operations end by errors"),
    ("observe", "rank", "operations are of ranks, and have numbers and tags"),
    ("group", "error", "groups of different worlds do not mix"),
    ("group", "rank", "who is in a group has a rank there"),
    (
        "buffer",
        "kernel",
        "a Raw is the only place where memory is read or written, so reductions are entered there",
    ),
];

/// Who must not know whom although levels would allow it, and why.
const STRANGERS: &[(&str, &str, &str)] = &[
    ("path", "buffer", "plans are pure: they know no bytes"),
    ("path", "kernel", "plans are pure: they know no bytes"),
    ("path", "device", "plans are pure: they know no devices"),
    ("path", "runtime", "plans are pure: they know no runtime"),
    ("topology", "runtime", "a model of machines needs no runtime"),
    ("link", "path", "links move frames: they know no plans"),
    ("link", "topology", "links are told whom they reach"),
];

/// What plans must not touch, so that they are functions of their arguments.
const IMPURE: &[&str] =
    &["std::net", "std::time", "std::thread", "std::fs", "std::env", "tokio", "rustix", "socket2"];

/// The folders that may hold unsafe code, and the files that do.
const UNSAFE_HOMES: &[&str] = &[
    "src/buffer/",
    "src/kernel/",
    "src/link/memory",
    "src/link/shm",
    "src/link/rdma",
    "src/runtime/",
    "src/device/",
];
const UNSAFE_FILES: &[&str] = &[
    "src/buffer/owned.rs",
    "src/buffer/parts.rs",
    "src/buffer/raw.rs",
    "src/buffer/segment.rs",
    "src/kernel/avx2.rs",
    "src/kernel/avx512.rs",
    "src/kernel/lane.rs",
    "src/kernel/mod.rs",
    "src/kernel/narrow.rs",
    "src/kernel/sweep.rs",
    "src/kernel/tests.rs",
    "src/link/shm/attach.rs",
    "src/link/shm/words.rs",
    "src/runtime/clock.rs",
    "src/runtime/fork.rs",
    "src/runtime/park.rs",
    "src/runtime/stand_in.rs",
    "src/runtime/tcp_info.rs",
];

/// What library code must not do, and where the output of a program may.
const BANNED: &[&str] = &["println!", "eprintln!", "print!", "eprint!", "dbg!", "todo!", "unimplemented!"];

/// Modules that read what peers and users send: nothing there may bring a process down.
const NO_UNWRAP: &[&str] = &["src/domain/", "src/engine/", "src/link/"];

/// Modules whose limits must say why they are what they are; how a picture is laid out limits nothing.
const LIMITS_DOCUMENTED: &[&str] = &[
    "src/buffer/",
    "src/domain/",
    "src/engine/",
    "src/link/",
    "src/path/",
    "src/runtime/",
    "src/communicator/",
];
const LIMITS_FREE: &[&str] = &["src/path/draw/"];

/// Exceptions: rule, file, what is excepted, reason. An exception that is not needed fails, too.
const EXCEPTIONS: &[(&str, &str, &str, &str)] = &[
    (
        "unwrap",
        "src/domain/root.rs",
        "a short message fits",
        "a message of a constant length, made here, against a limit that is a constant too",
    ),
    (
        "unwrap",
        "src/domain/token.rs",
        "any length of key is allowed",
        "the key is 32 bytes, and the hash takes keys of any length",
    ),
];

// --- source as text

struct Source {
    /// Relative to the package.
    name: String,
    text: String,
    /// `text` with comments and literals blanked; same lines, same columns.
    code: String,
    /// `code` with items under `#[cfg(test)]` blanked; empty for files that are tests.
    library: String,
}

impl Source {
    fn line_of(&self, at: usize) -> usize {
        self.text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn is_in(&self, folders: &[&str]) -> bool {
        folders.iter().any(|folder| self.name.starts_with(folder))
    }

    /// Top module: `src/engine/run.rs` and `src/engine/mod.rs` are `engine`, `src/rank.rs` is `rank`.
    fn module(&self) -> Option<&str> {
        let path = self.name.strip_prefix("src/")?;
        let first = path.split('/').next()?;
        let module = first.strip_suffix(".rs").unwrap_or(first);
        (!matches!(module, "lib" | "bin" | "main")).then_some(module)
    }

    /// How many modules deep the file is: 1 for `src/rank.rs` and `src/engine/mod.rs`.
    fn depth(&self) -> usize {
        let path = self.name.trim_start_matches("src/");
        path.split('/').filter(|part| !matches!(*part, "mod.rs" | "lib.rs")).count()
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    walk(&root().join("src"), &mut paths);
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "rs"));
    paths.iter().map(|path| read(path)).collect()
}

fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn read(path: &Path) -> Source {
    let name = path.strip_prefix(root()).unwrap().to_string_lossy().replace('\\', "/");
    let text = fs::read_to_string(path).unwrap();
    let code = blank_comments_and_literals(&text);
    let is_test =
        ["/tests.rs", "/models.rs"].iter().any(|end| name.ends_with(end)) || name.contains("/tests/");
    let library = if is_test { String::new() } else { blank_tests(&code) };
    Source { name, text, code, library }
}

/// Length of the comment or literal at the start of `rest`; 0 if there is none.
fn literal(rest: &[u8], before: u8) -> usize {
    let until =
        |end: &[u8]| rest.windows(end.len()).position(|window| window == end).map(|at| at + end.len());
    let word = before.is_ascii_alphanumeric() || before == b'_';
    match rest {
        [b'/', b'/', ..] => rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len()),
        [b'/', b'*', ..] => until(b"*/").unwrap_or(rest.len()),
        [b'r', b'"' | b'#', ..] if !word => {
            let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
            if rest.get(1 + hashes) != Some(&b'"') {
                return 0;
            }
            let end = [&b"\""[..], &b"#".repeat(hashes)].concat();
            let body = 2 + hashes;
            let found = rest[body..].windows(end.len()).position(|window| window == end);
            found.map_or(rest.len(), |at| body + at + end.len())
        }
        [b'"', ..] => quoted(rest, b'"'),
        [b'\'', b'\\', ..] => quoted(rest, b'\''),
        // A character, and not a lifetime: one scalar, then a quote.
        [b'\'', ..] => (2..=5).find(|at| rest.get(*at) == Some(&b'\'')).map_or(0, |at| {
            let scalar = std::str::from_utf8(&rest[1..at]).is_ok_and(|text| text.chars().count() == 1);
            if scalar { at + 1 } else { 0 }
        }),
        _ => 0,
    }
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(rest.len())
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

fn blank_comments_and_literals(text: &str) -> String {
    let mut out = text.as_bytes().to_vec();
    let mut at = 0;
    while at < out.len() {
        let before = if at == 0 { b' ' } else { out[at - 1] };
        let length = literal(&text.as_bytes()[at..], before);
        blank(&mut out[at..at + length]);
        at += length.max(1);
    }
    // What was not ASCII stood in comments and literals.
    String::from_utf8(out).unwrap()
}

fn blank_tests(code: &str) -> String {
    let mut out = code.as_bytes().to_vec();
    for (at, _) in code.match_indices("#[cfg(test)]").chain(code.match_indices("#[cfg(all(test")) {
        let end = item_end(code, at + code[at..].find(']').unwrap_or(0) + 1);
        blank(&mut out[at..end]);
    }
    String::from_utf8(out).unwrap()
}

/// The end of the item that begins at `from`: its closing brace, or its semicolon.
fn item_end(code: &str, from: usize) -> usize {
    let mut depth = 0i32;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b'}' | b')' | b']' => {
                depth -= 1;
                if depth == 0 && byte == b'}' {
                    return at + 1;
                }
            }
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    code.len()
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Where `word` stands by itself.
fn words<'a>(code: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(word).map(|(at, _)| at).filter(move |at| {
        let before = at.checked_sub(1).map(|at| code.as_bytes()[at]);
        let after = code.as_bytes().get(at + word.len()).copied();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

fn identifier(code: &str) -> &str {
    let code = code.trim_start();
    &code[..code.bytes().position(|byte| !is_word(byte)).unwrap_or(code.len())]
}

// --- judgement

struct Findings {
    rule: &'static str,
    list: Vec<String>,
    used: BTreeSet<usize>,
}

impl Findings {
    fn new(rule: &'static str) -> Self {
        Findings { rule, list: Vec::new(), used: BTreeSet::new() }
    }

    fn add(&mut self, file: &str, what: &str, message: String) {
        let excepted = EXCEPTIONS
            .iter()
            .position(|(rule, name, item, _)| *rule == self.rule && *name == file && what.contains(item));
        match excepted {
            Some(index) => drop(self.used.insert(index)),
            None => self.list.push(message),
        }
    }

    /// Fails with all findings at once, and with exceptions that nothing needs.
    fn judge(mut self) {
        for (index, (rule, file, item, _)) in EXCEPTIONS.iter().enumerate() {
            if *rule == self.rule && !self.used.contains(&index) {
                self.list.push(format!("{file}: the exception for {item} is not needed any more"));
            }
        }
        assert!(self.list.is_empty(), "{}:\n  {}", self.rule, self.list.join("\n  "));
    }
}

// --- the rules

#[test]
fn modules_know_only_those_below_them() {
    let mut findings = Findings::new("layers");
    for source in sources() {
        let Some(module) = source.module() else { continue };
        let Some(level) = level(module) else {
            findings.add(&source.name, module, format!("{}: give `{module}` a level in LEVELS", source.name));
            continue;
        };
        for (line, used) in crate_uses(&source) {
            if used == module {
                continue;
            }
            let allowed = match self::level(&used) {
                // Items of the crate's root are re-exports: library code names the module itself.
                None => false,
                Some(below) if below < level => !listed(STRANGERS, module, &used),
                Some(_) => listed(SIBLINGS, module, &used),
            };
            if !allowed {
                let message = format!("{}:{line}: `{module}` must not know `{used}`", source.name);
                findings.add(&source.name, &used, message);
            }
        }
    }
    findings.judge();
}

fn level(module: &str) -> Option<u32> {
    LEVELS.iter().find(|(name, _)| *name == module).map(|(_, level)| *level)
}

fn listed(table: &[(&str, &str, &str)], module: &str, used: &str) -> bool {
    table.iter().any(|(who, whom, _)| *who == module && *whom == used)
}

/// The modules that library code names, by `crate::…` or by `super::…` up to the root, with their lines.
fn crate_uses(source: &Source) -> Vec<(usize, String)> {
    let code = &source.library;
    let mut uses = Vec::new();
    for at in words(code, "crate") {
        if let Some(rest) = code[at..].strip_prefix("crate::") {
            uses.extend(heads(rest).into_iter().map(|head| (source.line_of(at), head)));
        }
    }
    for at in words(code, "super") {
        let mut rest = &code[at..];
        let mut ups = 0;
        while let Some(next) = rest.strip_prefix("super::") {
            rest = next;
            ups += 1;
        }
        let continues = code[..at].ends_with("super::");
        if !continues && ups >= source.depth() && ups > 0 {
            uses.extend(heads(rest).into_iter().map(|head| (source.line_of(at), head)));
        }
    }
    uses
}

/// The first segments of `a::b`, or of each branch of `{a::b, c}`.
fn heads(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return vec![identifier(rest).to_string()] };
    let mut heads = Vec::new();
    let (mut depth, mut start) = (0, 0);
    for (at, byte) in group.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' if depth > 0 => depth -= 1,
            b',' | b'}' if depth == 0 => {
                heads.push(identifier(&group[start..at]).to_string());
                start = at + 1;
                if byte == b'}' {
                    break;
                }
            }
            _ => {}
        }
    }
    heads.retain(|head| !head.is_empty());
    heads
}

#[test]
fn plans_are_pure() {
    let mut findings = Findings::new("purity");
    for source in sources().iter().filter(|source| source.is_in(&["src/path/", "src/topology/"])) {
        for impure in IMPURE {
            for at in words(&source.library, impure) {
                let message = format!("{}:{}: plans don't know {impure}", source.name, source.line_of(at));
                findings.add(&source.name, impure, message);
            }
        }
    }
    findings.judge();
}

#[test]
fn files_are_short() {
    let mut findings = Findings::new("file length");
    for source in sources() {
        // Tests that follow are not counted: what is blanked at the end is white space.
        let lines =
            if source.library.is_empty() { &source.code } else { &source.library }.trim_end().lines().count();
        if lines > FILE_LINES_MAX {
            let message =
                format!("{}: {lines} lines, at most {FILE_LINES_MAX} before the tests", source.name);
            findings.add(&source.name, "", message);
        }
    }
    findings.judge();
}

#[test]
fn functions_are_short() {
    let mut findings = Findings::new("function length");
    for source in sources() {
        for (name, line, lines) in functions(&source) {
            if lines > FUNCTION_LINES_MAX {
                let message = format!(
                    "{}:{line}: `{name}` has {lines} lines, at most {FUNCTION_LINES_MAX}",
                    source.name
                );
                findings.add(&source.name, &name, message);
            }
        }
    }
    findings.judge();
}

/// Name, first line and number of lines of each function with a body.
fn functions(source: &Source) -> Vec<(String, usize, usize)> {
    let code = &source.code;
    words(code, "fn")
        .filter_map(|at| {
            // `fn(` is a type.
            let name = identifier(&code[at + 2..]);
            let end = item_end(code, at);
            let body = !name.is_empty() && code[..end].ends_with('}');
            body.then(|| (name.to_string(), source.line_of(at), source.line_of(end) - source.line_of(at) + 1))
        })
        .collect()
}

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why_it_is_sound() {
    let mut findings = Findings::new("unsafe code");
    let mut files = BTreeSet::new();
    for source in sources() {
        let lines: Vec<&str> = source.text.lines().collect();
        for at in words(&source.code, "unsafe") {
            files.insert(source.name.clone());
            let next = source.code[at + "unsafe".len()..].trim_start();
            let line = source.line_of(at);
            if (next.starts_with('{') || next.starts_with("impl")) && !has_safety_comment(&lines[..line]) {
                let message = format!("{}:{line}: no `// SAFETY:` comment", source.name);
                findings.add(&source.name, "SAFETY", message);
            }
        }
        if source.code.contains("allow(unsafe_code)") && !UNSAFE_FILES.contains(&source.name.as_str()) {
            findings.add(
                &source.name,
                "allow",
                format!("{}: allows unsafe code, but is not listed", source.name),
            );
        }
    }
    for file in &files {
        let homed = UNSAFE_HOMES.iter().any(|home| file.starts_with(home));
        if !homed || !UNSAFE_FILES.contains(&file.as_str()) {
            findings.add(file, "place", format!("{file}: unsafe code outside of the listed files"));
        }
    }
    for file in UNSAFE_FILES {
        if !files.contains(*file) {
            findings.add(file, "list", format!("{file}: listed, but has no unsafe code"));
        }
    }
    findings.judge();
}

/// Whether a `SAFETY:` comment stands in the last of these lines, or above the statement that ends with it.
fn has_safety_comment(lines: &[&str]) -> bool {
    let Some((last, above)) = lines.split_last() else { return false };
    if last.contains("SAFETY:") {
        return true;
    }
    let mut commented = false;
    for line in above.iter().rev() {
        let line = line.trim();
        let comment = line.starts_with("//");
        if comment && line.contains("SAFETY:") {
            return true;
        }
        let statement_ended = line.is_empty() || line.ends_with(';') || line.ends_with('}');
        if !comment && (commented || statement_ended) {
            return false;
        }
        commented |= comment;
    }
    false
}

#[test]
fn library_code_prints_nothing_and_leaves_nothing_undone() {
    let mut findings = Findings::new("banned macros");
    for source in sources().iter().filter(|source| !source.is_in(&["src/bin/"])) {
        for banned in BANNED {
            let name = banned.trim_end_matches('!');
            for at in words(&source.library, name) {
                if source.library[at..].starts_with(banned) {
                    let message = format!("{}:{}: {banned}", source.name, source.line_of(at));
                    findings.add(&source.name, banned, message);
                }
            }
        }
    }
    findings.judge();
}

#[test]
fn what_peers_and_users_send_is_never_unwrapped() {
    let mut findings = Findings::new("unwrap");
    for source in sources().iter().filter(|source| source.is_in(NO_UNWRAP)) {
        for call in [".unwrap()", ".expect("] {
            for (at, _) in source.library.match_indices(call) {
                let line = source.line_of(at);
                let text = source.text.lines().nth(line - 1).unwrap_or_default().trim();
                findings.add(&source.name, text, format!("{}:{line}: {text}", source.name));
            }
        }
    }
    findings.judge();
}

#[test]
fn every_limit_says_why() {
    let mut findings = Findings::new("limits");
    for source in
        sources().iter().filter(|source| source.is_in(LIMITS_DOCUMENTED) && !source.is_in(LIMITS_FREE))
    {
        let lines: Vec<&str> = source.text.lines().collect();
        for at in words(&source.library, "const") {
            let (name, rest) = source.library[at + "const".len()..].split_once(':').unwrap_or_default();
            let name = name.trim();
            let limit = name.ends_with("_MAX") || name.ends_with("_MIN") || identifier(rest) == "Duration";
            let line = source.line_of(at);
            if limit && !is_documented(&lines[..line - 1]) {
                findings.add(&source.name, name, format!("{}:{line}: {name} has no comment", source.name));
            }
        }
    }
    findings.judge();
}

/// Whether a comment stands at the end of these lines, or above the run of constants at their end, which shares it.
fn is_documented(lines: &[&str]) -> bool {
    let above = lines.iter().rev().map(|line| line.trim_start());
    let mut above = above
        .skip_while(|line| line.starts_with("#[") || line.starts_with("const ") || line.starts_with("pub"));
    above.next().is_some_and(|line| line.starts_with("//"))
}

// --- the package

#[test]
fn the_default_tree_is_small_and_locked() {
    assert!(root().join("Cargo.lock").is_file(), "Cargo.lock is committed");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .args(["tree", "--edges", "normal", "--prefix", "none", "--offline", "--locked"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(tree.status.success(), "cargo tree: {}", String::from_utf8_lossy(&tree.stderr));
    let text = String::from_utf8(tree.stdout).unwrap();
    let package = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let packages: BTreeSet<String> = text.lines().filter(|line| !line.is_empty()).map(package).collect();
    let list = || packages.iter().cloned().collect::<Vec<_>>().join(", ");
    assert!(
        packages.len() <= PACKAGES_MAX,
        "{} packages, at most {PACKAGES_MAX}: {}",
        packages.len(),
        list()
    );
}

#[test]
fn tracked_files_name_no_place_of_one_machine() {
    let Some(files) = tracked() else { return };
    assert!(files.iter().any(|file| file == "Cargo.lock"), "Cargo.lock is committed");
    // In pieces, so that this file does not find itself.
    let places =
        [["/wo", "rk/"], ["/ro", "ot/"], ["/ho", "me/"], ["/Us", "ers/"]].map(|pieces| pieces.concat());
    let mut findings = Findings::new("places");
    for file in files {
        let Ok(text) = fs::read_to_string(root().join(&file)) else { continue };
        for (index, line) in text.lines().enumerate() {
            for place in places.iter().filter(|place| line.contains(place.as_str())) {
                findings.add(&file, line, format!("{file}:{}: {place}", index + 1));
            }
        }
    }
    findings.judge();
}

/// Files under version control; `None` where the package is not a checkout.
fn tracked() -> Option<Vec<String>> {
    let list = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output().ok()?;
    let list = String::from_utf8(list.stdout).ok().filter(|_| list.status.success())?;
    Some(list.split('\0').filter(|file| !file.is_empty()).map(str::to_string).collect())
}

// --- the reading itself

#[test]
fn comments_literals_and_tests_are_blanked() {
    let text = "let a = \"{ // \\\" }\"; // unsafe {\nlet b = '{'; let c: &'a str = r#\"}\"#; /* } */ f('\\'', b'x')";
    let code = blank_comments_and_literals(text);
    assert_eq!(code.len(), text.len());
    assert!(!code.contains(['{', '}', '"', '#']), "{code}");
    assert!(code.contains("&'a str") && !code.contains("unsafe"), "{code}");
    let code =
        "fn a() {}\n#[cfg(test)]\nmod tests;\nfn b() {}\n#[cfg(test)]\nmod more { fn c() { {} } }\nfn d() {}";
    let library = blank_tests(code);
    let left: Vec<_> = words(&library, "fn").map(|at| identifier(&library[at + 2..])).collect();
    assert_eq!(left, ["a", "b", "d"]);
}

#[test]
fn branches_of_a_use_are_all_seen() {
    assert_eq!(heads("link::{a, b};"), ["link"]);
    assert_eq!(heads("{domain::{x, y}, rank::Rank, engine};"), ["domain", "rank", "engine"]);
}
