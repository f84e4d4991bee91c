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
        let line = 1 + text[..stopped + rest.len() - rest.trim_start().len()].matches('\n').count();
        let trimmed = rest.trim_start();
        found.problems.push(format!("line {line} is no JSON: {}", excerpt(trimmed)));
        let skipped = trimmed.find('\n').unwrap_or(trimmed.len());
        start = text.len() - trimmed.len() + skipped;
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

    #[test]
    fn nothing_gives_nothing() {
        assert!(reports("").reports.is_empty());
        assert!(reports(" \n").problems.is_empty());
    }
}
