//! What types rule out, and what the compiler says then. After a change of either:
//! `TRYBUILD=overwrite cargo test --test compile_fail -- --ignored`.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
#[ignore = "builds the crate and its dependencies once more: minutes"]
fn what_types_rule_out_does_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}

/// The same without the words: by the library that was built for this test.
#[test]
fn what_types_rule_out_is_an_error_of_the_same_kind() {
    let cases = files("tests/compile_fail".as_ref(), |name| name.ends_with(".rs"));
    assert!(cases.len() >= 12, "{cases:?}");
    let this = std::env::current_exe().unwrap();
    let mut built =
        files(this.parent().unwrap(), |name| name.starts_with("libhcomm-") && name.ends_with(".rlib"));
    // The latest; others may be of other features, or of dependencies that are there no more.
    built.sort_by_key(|path| std::cmp::Reverse(path.metadata().unwrap().modified().unwrap()));
    let usable = built
        .iter()
        .find(|library| errors_with(library, "tests/compile_fail/control.txt".as_ref()).is_empty());
    let library = usable.unwrap_or_else(|| panic!("none of {built:?} can be used"));
    for case in cases {
        let expected = codes(&std::fs::read_to_string(case.with_extension("stderr")).unwrap());
        assert_eq!(errors_with(library, &case), expected, "{case:?}");
        assert!(!expected.is_empty(), "{case:?}");
    }
}

/// Sorted.
fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> =
        entries.filter(|path| wanted(&path.file_name().unwrap().to_string_lossy())).collect();
    found.sort();
    found
}

/// Which errors there are if this is compiled with that library.
fn errors_with(library: &Path, source: &Path) -> Vec<String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    // It replaces what is there of this name.
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("ruled-out-{}.rmeta", std::process::id()));
    let output = Command::new(rustc)
        .args(["--edition", "2024", "--crate-type", "bin", "--emit", "metadata", "-o"])
        .arg(&made)
        .arg("-L")
        .arg(format!("dependency={}", library.parent().unwrap().display()))
        .arg("--extern")
        .arg(format!("hcomm={}", library.display()))
        .arg(source)
        .output()
        .unwrap();
    let _ = std::fs::remove_file(made);
    let said = String::from_utf8_lossy(&output.stderr);
    let errors = codes(&said);
    assert_eq!(output.status.success(), errors.is_empty(), "{source:?}: {said}");
    errors
}

/// The kinds of errors, with their numbers where they have one.
fn codes(said: &str) -> Vec<String> {
    let kind = |line: &str| line.split_once(':').map(|(kind, _)| kind.to_string());
    let errors =
        said.lines().filter(|line| line.starts_with("error") && !line.starts_with("error: aborting"));
    let mut codes: Vec<String> = errors.filter_map(kind).collect();
    codes.sort();
    codes
}
