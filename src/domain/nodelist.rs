//! Slurm's lists of nodes: `node[001-003,7],other-2`.

/// The first node of a list; `None` if it is none. Of each pair of brackets the first number counts, with its zeros.
pub(super) fn first(list: &str) -> Option<String> {
    elements(list)?.iter().map(|element| first_of(element)).collect::<Option<Vec<_>>>()?.into_iter().next()
}

/// What commas outside of brackets separate.
fn elements(list: &str) -> Option<Vec<&str>> {
    let (mut elements, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' | ']' if inside == (letter == '[') => return None,
            '[' | ']' => inside = !inside,
            ',' if !inside => {
                elements.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    elements.push(&list[start..]);
    (!inside).then_some(elements)
}

fn first_of(element: &str) -> Option<String> {
    let mut parts = element.split('[');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (numbers, rest) = part.split_once(']')?;
        name.push_str(first_number(numbers)?);
        name.push_str(rest);
    }
    let is_name = name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-._".contains(letter));
    (is_name && !name.is_empty()).then_some(name)
}

/// Of `001-003,7`, all of which must be numbers.
fn first_number(numbers: &str) -> Option<&str> {
    let is_number = |text: &&str| !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit());
    let mut firsts = numbers.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first).filter(|first| is_number(first) && is_number(&last))
    });
    let first = firsts.next()?;
    if firsts.all(|number| number.is_some()) { first } else { None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_node_is_found() {
        let cases = [
            ("node[001-003,7],other-2", "node001"),
            ("other-2,node[001-003,7]", "other-2"),
            ("node7", "node7"),
            ("node[9-11]", "node9"),
            ("adev[2,8-14]", "adev2"),
            ("rack[1-2]node[04-07],x", "rack1node04"),
            ("gpu[10-12]-ib", "gpu10-ib"),
            ("node-a.example.org,b", "node-a.example.org"),
        ];
        for (list, node) in cases {
            assert_eq!(first(list).as_deref(), Some(node), "{list}");
        }
    }

    #[test]
    fn what_is_no_list_of_nodes_has_no_first() {
        let lists = [
            "",
            ",",
            "a,,b",
            "node[",
            "node]",
            "node[]",
            "node[1",
            "node1]",
            "node[[1]]",
            "node[1-]",
            "node[-2]",
            "node[a-b]",
            "node[1,]",
            "node 1",
            "(null)",
            "a,node[x]",
        ];
        for list in lists {
            assert_eq!(first(list), None, "{list:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "[a-z0-9,\\[\\]-]{0,24}") {
            if let Some(node) = first(&text) {
                prop_assert!(!node.is_empty() && !node.contains(['[', ']', ',']), "{}", node);
            }
        }
    }
}
