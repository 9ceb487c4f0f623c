//! Splits the text of a module into variables and functions, and a function's body into statements.

use crate::broken::broken;

/// A declaration or a function of a module.
#[derive(Debug, PartialEq, Eq)]
pub struct Part<'a> {
    /// Everything before the body.
    pub head: &'a str,
    pub body: Option<&'a str>,
}

/// One instruction or directive of a body.
#[derive(Debug, PartialEq, Eq)]
pub struct Statement<'a> {
    pub labels: Vec<&'a str>,
    /// The predicate, and true if it is negated.
    pub guard: Option<(&'a str, bool)>,
    /// The opcode with its modifiers.
    pub opcode: &'a str,
    pub operands: Vec<&'a str>,
}

impl Statement<'_> {
    /// Ends the process: this statement is not interpreted.
    pub fn refuse(&self, why: &str) -> ! {
        let text = format!("{} {}", self.opcode, self.operands.join(", "));
        broken("the stand-in interprets every instruction of a kernel", format!("{why}: {text}"))
    }
}

/// Removes comments, and the directives that end with their line.
pub fn without_comments(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        let first = line.split_whitespace().next().unwrap_or_default();
        let whole_line = [".version", ".target", ".address_size", ".file", ".loc", ".pragma"];
        if !whole_line.contains(&first) {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

/// The parts of a module.
pub fn parts(text: &str) -> Vec<Part<'_>> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(end) = rest.find([';', '{']) {
        let head = &rest[..end];
        if rest[end..].starts_with(';') || head.contains('=') {
            let end = rest.find(';').unwrap_or(rest.len() - 1);
            found.push(Part { head: rest[..end].trim(), body: None });
            rest = &rest[end + 1..];
        } else {
            let close = end + closing(&rest[end..]);
            found.push(Part { head: head.trim(), body: Some(&rest[end + 1..close]) });
            rest = &rest[close + 1..];
        }
    }
    found
}

/// The place of the brace that closes the first one.
fn closing(text: &str) -> usize {
    let mut depth = 0;
    for (place, letter) in text.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' if depth == 1 => return place,
            '}' => depth -= 1,
            _ => {}
        }
    }
    broken("a kernel is whole", "a brace is not closed")
}

/// The statements of a body, without the braces of its scopes.
pub fn statements(body: &str) -> Vec<Statement<'_>> {
    let (mut found, mut labels, mut start, mut depth) = (Vec::new(), Vec::new(), 0, 0);
    for (place, letter) in body.char_indices() {
        let so_far = body[start..place].trim();
        match letter {
            '{' | '}' if so_far.is_empty() => start = place + 1,
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ':' if depth == 0 && !so_far.contains(char::is_whitespace) => {
                labels.push(so_far);
                start = place + 1;
            }
            ';' => {
                found.push(statement(so_far, std::mem::take(&mut labels)));
                start = place + 1;
            }
            _ => {}
        }
    }
    found
}

fn statement<'a>(text: &'a str, labels: Vec<&'a str>) -> Statement<'a> {
    let (guard, text) = match text.strip_prefix('@') {
        Some(text) => {
            let (predicate, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
            let negated = predicate.strip_prefix('!');
            (Some((negated.unwrap_or(predicate), negated.is_some())), rest.trim())
        }
        None => (None, text),
    };
    let (opcode, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    Statement { labels, guard, opcode, operands: split(rest) }
}

/// Splits at the commas that are not within brackets.
pub fn split(text: &str) -> Vec<&str> {
    let (mut found, mut start, mut depth) = (Vec::new(), 0, 0);
    for (place, letter) in text.char_indices() {
        match letter {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                found.push(text[start..place].trim());
                start = place + 1;
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !last.is_empty() || !found.is_empty() {
        found.push(last);
    }
    found
}
