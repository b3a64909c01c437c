//! The model's chat template, rendered as Hugging Face's `apply_chat_template` does.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value as Var;
use minijinja::{Environment, Error, ErrorKind, context};
use serde_json::Value;

use super::TextError;
use crate::openai::Messages;

/// Bounds instructions, and the bytes that they make to 64 each: a second of work at most.
const FUEL: u64 = 2_000_000;
const RENDERED_BYTES_MAX: usize = 16 << 20;

pub(super) struct Template {
    environment: Environment<'static>,
    specials: Var,
}

impl Template {
    /// `source` is the file `chat_template.jinja`, `config` the file `tokenizer_config.json`.
    pub(super) fn new(source: Option<Vec<u8>>, config: &Value) -> Result<Self, String> {
        let source = match (source, &config["chat_template"]) {
            (Some(source), _) => {
                String::from_utf8(source).map_err(|it| format!("chat_template.jinja: {it}"))?
            }
            (None, Value::String(source)) => source.clone(),
            (None, Value::Array(list)) => {
                let default = list.iter().find(|it| it["name"] == "default");
                let source = default.and_then(|it| it["template"].as_str());
                source
                    .ok_or("tokenizer_config.json names no template `default`")?
                    .to_owned()
            }
            _ => {
                return Err("neither chat_template.jinja nor tokenizer_config.json has one".into());
            }
        };
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.map_err(|it| it.to_string())?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", |message: String| -> Result<Var, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", |format: &str| {
            let now = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            strftime(format, now.as_secs())
        });
        environment.add_filter("tojson", tojson);
        environment
            .add_template_owned("chat", source)
            .map_err(|it| format!("{it:#}"))?;
        let specials = ["bos_token", "eos_token", "unk_token", "pad_token"]
            .iter()
            .filter_map(|name| Some((*name, special(&config[*name])?)));
        Ok(Self {
            environment,
            specials: Var::from_pairs(specials),
        })
    }

    pub(super) fn render(&self, messages: &Messages) -> Result<String, TextError> {
        let refused = |error: Error| {
            TextError::Messages(
                error
                    .detail()
                    .map_or_else(|| error.to_string(), str::to_owned),
            )
        };
        let messages: Var = messages
            .0
            .iter()
            .map(|it| Var::from_pairs([("role", &*it.role), ("content", &*it.content)]))
            .collect();
        let rendered = self
            .environment
            .get_template("chat")
            .and_then(|template| {
                let own = context! { messages, add_generation_prompt => true };
                template.render(context! { ..own, ..self.specials.clone() })
            })
            .map_err(refused)?;
        if rendered.len() > RENDERED_BYTES_MAX {
            let message = format!(
                "{} bytes of text: at most {RENDERED_BYTES_MAX}",
                rendered.len()
            );
            return Err(TextError::Messages(message));
        }
        Ok(rendered)
    }
}

/// A special token of `tokenizer_config.json`: a string, or an object around one.
pub(super) fn special(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// As Hugging Face's filter: letters outside ASCII and HTML's stay as they are.
fn tojson(value: &Var, _: minijinja::value::Kwargs) -> Result<String, Error> {
    serde_json::to_string(value)
        .map_err(|it| Error::new(ErrorKind::InvalidOperation, it.to_string()))
}

/// `format` of the time `seconds` after 1970, in UTC.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = [
        "Thursday",
        "Friday",
        "Saturday",
        "Sunday",
        "Monday",
        "Tuesday",
        "Wednesday",
    ];
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 0000-03-01, in eras of 400 years: Howard Hinnant's `civil_from_days`.
    let since = day + 719_468;
    let of_era = since % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_of_year = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month_of_year + 2) / 5 + 1;
    let month = (month_of_year + 2) % 12 + 1;
    let year = since / 146_097 * 400 + year_of_era + u64::from(month <= 2);
    let name =
        |names: &[&'static str], i: u64| names[usize::try_from(i).unwrap_or(0) % names.len()];

    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('d') => out += &format!("{date:02}"),
            Some('m') => out += &format!("{month:02}"),
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('B') => out += name(&MONTHS, month - 1),
            Some('b') => out += &name(&MONTHS, month - 1)[..3],
            Some('A') => out += name(&DAYS, day),
            Some('a') => out += &name(&DAYS, day)[..3],
            Some('H') => out += &format!("{:02}", second / 3600),
            Some('M') => out += &format!("{:02}", second / 60 % 60),
            Some('S') => out += &format!("{:02}", second % 60),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn a_date_is_the_calendar_s() {
        let format = "%d %b %Y, %A %H:%M:%S %y%m %B %%";
        assert_eq!(
            strftime(format, 1_709_210_096),
            "29 Feb 2024, Thursday 12:34:56 2402 February %%"
        );
        assert_eq!(strftime("%a %d.%m.%Y%", 0), "Thu 01.01.1970%");
        assert_eq!(strftime("%Y-%m-%d %a", 4_102_444_799), "2099-12-31 Thu");
    }
}
