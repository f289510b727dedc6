//! The subset of the API's filter language that our clients use: `labels.KEY = "VALUE"`, `labels.KEY:*`, `name`, `id`,
//! `status` and `zone` with `=` and `!=`, with or without parentheses, joined by AND or by juxtaposition.

use super::json::Problem;
use super::settings::GceSettings;
use super::state::Instance;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Filter(Vec<Term>);

#[derive(Debug, PartialEq, Eq)]
struct Term {
    field: String,
    test: Test,
}

#[derive(Debug, PartialEq, Eq)]
enum Test {
    Is(String),
    IsNot(String),
    Present,
}

impl Filter {
    pub(super) fn parse(text: &str) -> Result<Filter, Problem> {
        let tokens = tokens(text);
        let wrong = || Problem::field("filter", text, "Invalid list filter expression.");
        let mut terms = Vec::new();
        let mut rest = tokens.as_slice();
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            if first == "AND" && !terms.is_empty() {
                continue;
            }
            let [operator, value, after @ ..] = rest else {
                return Err(wrong());
            };
            rest = after;
            let test = match (operator.as_str(), value.as_str()) {
                (":", "*") => Test::Present,
                ("=" | "eq", value) => Test::Is(value.to_owned()),
                ("!=" | "ne", value) => Test::IsNot(value.to_owned()),
                _ => return Err(wrong()),
            };
            let known = ["name", "id", "status", "zone"].contains(&first.as_str());
            if !known && !first.starts_with("labels.") {
                return Err(wrong());
            }
            terms.push(Term {
                field: first.clone(),
                test,
            });
        }
        Ok(Filter(terms))
    }

    pub(super) fn lets_through(&self, settings: &GceSettings, instance: &Instance) -> bool {
        self.0.iter().all(|term| {
            let value = match term.field.as_str() {
                "name" => Some(instance.name.clone()),
                "id" => Some(instance.id.to_string()),
                "status" => Some(instance.status(settings).to_owned()),
                "zone" => Some(instance.zone.clone()),
                field => field
                    .strip_prefix("labels.")
                    .and_then(|key| instance.labels.get(key).cloned()),
            };
            match &term.test {
                Test::Is(wanted) => value.as_ref() == Some(wanted),
                Test::IsNot(wanted) => value.as_ref() != Some(wanted),
                Test::Present => value.is_some(),
            }
        })
    }
}

/// Splits into words, operators and quoted values, without parentheses.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            ' ' | '(' | ')' => {}
            '"' => tokens.push(chars.by_ref().take_while(|char| *char != '"').collect()),
            '!' if chars.peek() == Some(&'=') => {
                chars.next();
                tokens.push("!=".to_owned());
            }
            '=' | ':' => tokens.push(char.to_string()),
            first => {
                let mut word = first.to_string();
                while let Some(next) = chars
                    .peek()
                    .copied()
                    .filter(|char| !" ()\"=:!".contains(*char))
                {
                    word.push(next);
                    chars.next();
                }
                tokens.push(word);
            }
        }
    }
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_with_and_without_parentheses_and_quotes() {
        let plain = Filter::parse("labels.drover-cluster=orders AND labels.a_2eb:*").unwrap();
        let quoted =
            Filter::parse("(labels.drover-cluster = \"orders\") (labels.a_2eb:*)").unwrap();
        assert_eq!(plain, quoted);
        assert_eq!(plain.0.len(), 2);
        assert!(Filter::parse("labels.a ~ b").is_err());
        assert!(Filter::parse("machineType = x").is_err());
        assert!(Filter::parse("name").is_err());
    }
}
