//! Command lines of Go programs, by a table of their flags that says what becomes of each. Pure.
//!
//! kube-apiserver reads its own with pflag, etcd with Go's `flag`: names with one dash or two, values after `=` or as the next
//! argument, none needed for a boolean one.

use std::{collections::BTreeMap, net::IpAddr};

use windlass_kit::duration;

/// How a program reads its command line, and how it words what is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Pflag,
    GoFlag,
}

/// What becomes of a flag.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Rule {
    /// It is done as in the program itself.
    Acts,
    /// Any value of its type is accepted.
    Ignored,
    /// Only these values are accepted.
    Values(Vec<&'static str>),
    /// Only 0 and numbers from this one on are accepted.
    Least(i64),
}

/// A row of a table.
#[derive(Debug, Clone)]
struct Flag {
    name: &'static str,
    kind: &'static str,
    default: &'static str,
    rule: Rule,
    why: &'static str,
}

/// The flags of a program.
#[derive(Debug)]
pub(super) struct Table {
    dialect: Dialect,
    program: &'static str,
    flags: BTreeMap<&'static str, Flag>,
}

/// What a command line asks for.
#[derive(Debug)]
pub(super) enum Asked {
    Run(Given),
    Help,
    Version,
}

/// The flags that were given, with their values in order.
#[derive(Debug, Default)]
pub(super) struct Given(BTreeMap<&'static str, Vec<String>>);

impl Given {
    /// The last value; `None` if there is none or it is empty, which is the same for flags with a text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.last().map(String::as_str).filter(|text| !text.is_empty())
    }

    /// All values, each a text as it is.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.get(name).into_iter().flatten().map(String::as_str).filter(|text| !text.is_empty())
    }

    /// All values, each a list with commas.
    pub(super) fn list(&self, name: &str) -> Vec<&str> {
        self.all(name).flat_map(|values| values.split(',')).map(str::trim).filter(|value| !value.is_empty()).collect()
    }

    pub(super) fn is_true(&self, name: &str) -> bool {
        self.text(name).and_then(read_bool).unwrap_or(false)
    }
}

impl Table {
    /// Reads a table: name, type, default, rule and reason, separated by tabs.
    pub(super) fn read(dialect: Dialect, program: &'static str, text: &'static str) -> Self {
        let flags = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let mut cells = line.split('\t');
            let (name, kind, default, rule) = (cells.next()?, cells.next()?, cells.next()?, cells.next()?);
            let rule = match rule.split_once(':') {
                None if rule == "acts" => Rule::Acts,
                None if rule == "ignored" => Rule::Ignored,
                None => Rule::Values(vec![default]),
                Some(("least", number)) => Rule::Least(number.parse().ok()?),
                Some((_, values)) => Rule::Values(values.split(',').collect()),
            };
            Some((name, Flag { name, kind, default, rule, why: cells.next().unwrap_or_default() }))
        });
        Self { dialect, program, flags: flags.collect() }
    }

    /// Reads a command line.
    ///
    /// # Errors
    /// What is wrong, in the words of the program where it would refuse it, too.
    pub(super) fn parse(&self, arguments: &[String]) -> Result<Asked, String> {
        let mut given = Given::default();
        let mut rest = arguments.iter();
        let mut positional = Vec::new();
        while let Some(argument) = rest.next() {
            if argument == "--" {
                positional.extend(rest.by_ref());
                break;
            }
            let Some(stripped) = argument.strip_prefix('-').filter(|stripped| !stripped.is_empty()) else {
                positional.push(argument);
                continue;
            };
            let (name, value) = self.split(stripped);
            if matches!((self.dialect, name.as_str()), (_, "h" | "help")) {
                return Ok(Asked::Help);
            }
            let Some(flag) = self.flags.get(name.as_str()) else { return Err(self.unknown(argument, &name)) };
            if flag.name == "version" {
                return Ok(Asked::Version);
            }
            let value = match value {
                Some(value) => value,
                None if flag.kind == "bool" => "true".to_owned(),
                None => rest.next().cloned().ok_or_else(|| self.without_value(&name))?,
            };
            self.accept(flag, &value)?;
            given.0.entry(flag.name).or_default().push(value);
        }
        if positional.is_empty() {
            return Ok(Asked::Run(given));
        }
        let quoted: Vec<String> = positional.iter().map(|argument| format!("{argument:?}")).collect();
        Err(match self.dialect {
            Dialect::Pflag => format!("{:?} does not take any arguments, got [{}]", self.program, quoted.join(" ")),
            Dialect::GoFlag => format!("{} is not a valid flag", positional[0]),
        })
    }

    /// Name and value of an argument without its first dash.
    fn split(&self, argument: &str) -> (String, Option<String>) {
        let long = argument.strip_prefix('-');
        // `-v3` and `-v=3` of pflag.
        if self.dialect == Dialect::Pflag
            && long.is_none()
            && let Some(value) = argument.strip_prefix('v')
        {
            let value = value.strip_prefix('=').unwrap_or(value);
            return ("v".to_owned(), (!value.is_empty()).then(|| value.to_owned()));
        }
        let (name, value) = match long.unwrap_or(argument).split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (long.unwrap_or(argument), None),
        };
        (if self.dialect == Dialect::Pflag { name.replace('_', "-") } else { name.to_owned() }, value)
    }

    fn unknown(&self, argument: &str, name: &str) -> String {
        match self.dialect {
            Dialect::Pflag if argument.starts_with("--") => format!("unknown flag: --{name}"),
            Dialect::Pflag => {
                let short = argument.chars().nth(1).unwrap_or('-');
                format!("unknown shorthand flag: {short:?} in {argument}")
            }
            Dialect::GoFlag => format!("flag provided but not defined: -{name}"),
        }
    }

    fn without_value(&self, name: &str) -> String {
        match self.dialect {
            Dialect::Pflag => format!("flag needs an argument: --{name}"),
            Dialect::GoFlag => format!("flag needs an argument: -{name}"),
        }
    }

    /// Refuses a value that is not of the flag's type, or asks for what is not done.
    fn accept(&self, flag: &Flag, value: &str) -> Result<(), String> {
        let canonical = canonical(flag.kind, value).map_err(|why| match self.dialect {
            Dialect::Pflag => format!("invalid argument {value:?} for \"--{}\" flag: {why}", flag.name),
            Dialect::GoFlag => format!("invalid value {value:?} for flag -{}: {why}", flag.name),
        })?;
        let accepted = match &flag.rule {
            Rule::Acts | Rule::Ignored => true,
            Rule::Values(values) => values.iter().any(|value| *value == canonical),
            Rule::Least(least) => canonical.parse::<i64>().is_ok_and(|number| number == 0 || number >= *least),
        };
        if accepted {
            return Ok(());
        }
        Err(format!("--{}={value} is not possible with windlass: {}", flag.name, flag.why))
    }

    /// What `--help` prints: a line for each flag that is accepted at all, as envtest searches it.
    pub(super) fn help(&self) -> String {
        let mut text = format!(
            "{} of windlass, for tests: the flags, and what is made of them.\n\nUsage:\n  {0} [flags]\n\nFlags:\n",
            self.program
        );
        for flag in self.flags.values() {
            let kind = if flag.kind == "bool" { "" } else { flag.kind };
            let default = if flag.default.is_empty() { "" } else { &format!(" (default {})", flag.default) };
            let what = match &flag.rule {
                Rule::Acts => format!("As in {}{default}", self.program),
                Rule::Ignored => format!("Accepted without effect: {}", flag.why),
                Rule::Values(values) => format!("Only {}: {}", words(values), flag.why),
                Rule::Least(least) => format!("Only 0 and from {least} on: {}", flag.why),
            };
            text.push_str(&format!("      --{} {kind:<12} {what}\n", flag.name));
        }
        text
    }
}

fn words(values: &[&str]) -> String {
    let quoted: Vec<&str> = values.iter().map(|value| if value.is_empty() { "nothing" } else { value }).collect();
    quoted.join(" or ")
}

/// Go's `strconv.ParseBool`.
fn read_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// A value as Go prints it, for comparison; or why it is not of the type.
fn canonical(kind: &str, value: &str) -> Result<String, String> {
    let wrong = |function: &str| format!("strconv.{function}: parsing {value:?}: invalid syntax");
    match kind {
        "bool" => read_bool(value).map(|value| value.to_string()).ok_or_else(|| wrong("ParseBool")),
        "int" | "Level" => value.parse::<i64>().map(|number| number.to_string()).map_err(|_| wrong("ParseInt")),
        "float32" => value.parse::<f32>().map(|number| number.to_string()).map_err(|_| wrong("ParseFloat")),
        "duration" => {
            let read = duration::parse(value).ok_or_else(|| format!("time: invalid duration {value:?}"))?;
            Ok(duration::format(read))
        }
        "ip" => value.parse::<IpAddr>().map(|ip| ip.to_string()).map_err(|_| format!("failed to parse IP: {value:?}")),
        _ => Ok(value.to_owned()),
    }
}

#[cfg(test)]
#[path = "tests/flags.rs"]
mod tests;
