//! Reports from a file.

use hcomm::Report;
use serde_json::{Deserializer, Value};

/// What a file holds.
#[derive(Default)]
pub struct Found {
    pub reports: Vec<Report>,
    /// What could not be read.
    pub problems: Vec<String>,
}

/// All reports: objects one after the other, arrays of them, or below a key `reports`. What can't be read is told, and
/// does not hide the rest: a rank may have been killed while it wrote.
pub fn reports(text: &str) -> Found {
    let mut found = Found::default();
    let mut start = 0;
    // Lines are counted once, however many of them are broken.
    let (mut line, mut counted) = (1, 0);
    while start < text.len() {
        let mut values = Deserializer::from_str(&text[start..]).into_iter::<Value>();
        for value in values.by_ref().map_while(Result::ok) {
            found.take(value);
        }
        let stopped = start + values.byte_offset();
        let rest = &text[stopped..];
        if rest.trim().is_empty() {
            break;
        }
        let trimmed = rest.trim_start();
        let at = text.len() - trimmed.len();
        line += text[counted..at].matches('\n').count();
        counted = at;
        found.problems.push(format!("line {line} is no JSON: {}", excerpt(trimmed)));
        let skipped = trimmed.find('\n').unwrap_or(trimmed.len());
        start = at + skipped;
    }
    found
}

impl Found {
    fn take(&mut self, value: Value) {
        match value {
            Value::Array(values) => values.into_iter().for_each(|value| self.take(value)),
            Value::Object(mut fields) if fields.contains_key("reports") => {
                self.take(fields.remove("reports").unwrap_or_default());
            }
            value => {
                let text = value.to_string();
                match serde_json::from_value(value) {
                    Ok(report) => self.reports.push(report),
                    Err(error) => self.problems.push(format!("not a report ({error}): {}", excerpt(&text))),
                }
            }
        }
    }
}

/// The beginning, as far as it helps to find the place.
fn excerpt(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(CHARS_MAX).collect();
    if short.len() < line.len() { short + "…" } else { short }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tell::tell;
    use super::*;

    const REPORT: &str = r#"{"operation":"all_reduce","seq":42,"communicator":"dp","rank":0,
        "waited":{"secs":12,"nanos":300000000},"late":[2],"states":[[2,"has not called #42"]],"cause":""}"#;

    #[test]
    fn every_shape_is_read() {
        let line = REPORT.replace('\n', "");
        for text in [
            REPORT.to_string(),
            format!("{line}\n{line}\n"),
            format!("[{line},{line}]"),
            format!("{{\"reports\":[{line}]}}\n{{\"reports\":[]}}"),
        ] {
            let found = reports(&text);
            assert!(found.problems.is_empty(), "{:?}", found.problems);
            assert!(!found.reports.is_empty(), "{text}");
        }
    }

    #[test]
    fn what_is_broken_hides_nothing_else() {
        let line = REPORT.replace('\n', "");
        let found =
            reports(&format!("{line}\n{{\"operation\": \n{line}\nnonsense\n{{}}\n{line}\n{}", &line[..50]));
        assert_eq!(found.reports.len(), 3);
        assert_eq!(found.problems.len(), 4, "{:?}", found.problems);
        assert!(found.problems[0].starts_with("line 2 "), "{:?}", found.problems);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in any::<String>(), lines in proptest::collection::vec(0usize..6, 0..20)) {
            let line = REPORT.replace('\n', "");
            let pieces = [&line, "[", "{\"reports\":", "]}", &text, "\n"];
            let mixed: String = lines.iter().map(|piece| pieces[*piece]).collect();
            for text in [&text, &mixed] {
                let found = reports(text);
                tell(&found.reports, true);
            }
        }

        #[test]
        fn a_damaged_report_is_told_or_refused(cut in 0usize..300, at in 0usize..300, byte in any::<char>(), ranks in proptest::collection::vec(any::<u32>(), 1..9)) {
            let mut line = REPORT.replace('\n', "");
            let late: Vec<String> = ranks.iter().map(u32::to_string).collect();
            line = line.replace("[2]", &format!("[{}]", late.join(",")));
            let text = format!("{line}\n{}", line.replace("\"rank\":0", &format!("\"rank\":{}", ranks[0])));
            tell(&reports(&text).reports, true);
            let mut damaged: Vec<char> = text.chars().collect();
            let places = damaged.len();
            damaged[at % places] = byte;
            damaged.truncate(places - cut % places);
            let damaged: String = damaged.into_iter().collect();
            tell(&reports(&damaged).reports, true);
        }
    }

    /// Time grows with the file, not with its square.
    #[test]
    fn a_file_of_another_kind_is_refused_line_by_line() {
        let found = reports(&"nonsense\n".repeat(200_000));
        assert_eq!(found.problems.len(), 200_000);
        assert!(found.problems[199_999].starts_with("line 200000 "), "{:?}", found.problems.last());
    }

    #[test]
    fn nothing_gives_nothing() {
        assert!(reports("").reports.is_empty());
        assert!(reports(" \n").problems.is_empty());
    }
}
