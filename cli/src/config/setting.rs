//! What a setting is: its name in the file, its flag, its help, and the field of [`Settings`] that it sets. The table of all
//! is in [`super::settings_table`]; the file, the flags, the lists of `windlass config` and the documentation follow from it.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{
    Arg, ArgAction,
    builder::{PossibleValue, PossibleValuesParser},
};
use k8s_openapi::api::core::v1::Taint;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_kit::net::NodeIps;

use super::{
    Addresses, LogFormat, OptionalAddress, PodNetwork, Ranges, RulesLayout, Settings, detect_local::DetectLocalMode,
};

/// Sets the field of a setting to the value that was read.
pub(super) type Apply = Box<dyn FnOnce(&mut Settings)>;

/// The commands that have a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    /// Those that run or join a node of an existing cluster.
    JoinedNode,
    /// The one that runs such a node.
    Identity,
}

/// How a flag is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// With a value, once.
    Once,
    /// With a value, any number of times.
    Repeated,
    /// Alone, or with `=BOOL`, as Go's.
    Switch,
}

/// A row of the table.
#[derive(Debug)]
pub(crate) struct Setting {
    /// In the file; empty for a part of another setting, which has a flag alone.
    pub(crate) name: &'static str,
    /// Such as `--node-name NAME`; empty for one that only the file has.
    pub(super) flag: &'static str,
    pub(crate) help: &'static str,
    pub(super) scope: Scope,
    pub(super) form: Form,
    pub(super) env: Option<&'static str>,
    pub(super) alias: Option<&'static str>,
    /// The values of a flag, if they are few.
    pub(super) choices: fn() -> Vec<PossibleValue>,
    /// In the file's form, null if unset.
    pub(super) shown: fn(&Settings) -> Value,
    /// Reads the text of its key and value; null sets nothing. The error is the parser's report.
    pub(super) from_yaml: fn(&str) -> Result<Option<Apply>, String>,
    /// Reads what its flag was given.
    pub(super) from_words: fn(&[&str]) -> Result<Apply, String>,
}

impl Setting {
    pub(super) const fn env(mut self, name: &'static str) -> Self {
        self.env = Some(name);
        self
    }

    pub(super) const fn alias(mut self, name: &'static str) -> Self {
        self.alias = Some(name);
        self
    }

    pub(super) const fn repeated(mut self) -> Self {
        self.form = Form::Repeated;
        self
    }

    pub(super) const fn switch(mut self) -> Self {
        self.form = Form::Switch;
        self
    }

    pub(super) const fn of_joined_node(mut self) -> Self {
        self.scope = Scope::JoinedNode;
        self
    }

    pub(super) const fn of_identity(mut self) -> Self {
        self.scope = Scope::Identity;
        self
    }

    /// The flag without its dashes, and the name of its value.
    fn long_and_value(&self) -> Option<(&'static str, &'static str)> {
        self.flag.strip_prefix("--")?.split_once(' ')
    }

    /// The flag without its dashes.
    pub(crate) fn long(&self) -> Option<&'static str> {
        Some(self.long_and_value()?.0)
    }

    /// The flag for clap.
    pub(super) fn arg(&'static self) -> Option<Arg> {
        let (long, value) = self.long_and_value()?;
        let action = if self.form == Form::Repeated { ArgAction::Append } else { ArgAction::Set };
        let mut arg = Arg::new(long).long(long).value_name(value).help(self.help).action(action);
        arg = arg.global(self.scope == Scope::All).allow_negative_numbers(true);
        if self.form == Form::Switch {
            arg = arg.num_args(0..=1).require_equals(true).default_missing_value("true");
        }
        if let Some(alias) = self.alias {
            arg = arg.alias(alias);
        }
        if let Some(name) = self.env {
            arg = arg.env(name);
        }
        let choices = (self.choices)();
        Some(if choices.is_empty() {
            arg.value_parser(move |text: &str| (self.from_words)(&[text]).map(|_| text.to_owned()))
        } else {
            arg.value_parser(PossibleValuesParser::new(choices))
        })
    }
}

/// A row: name, flag, field and type, help; then what shows it, where that is not the field as it is. The type is that of the
/// file and of the flag, `= fn` reads a flag that is written otherwise, and `as text fn` a text in both.
macro_rules! setting {
    ($name:literal, $flag:literal, $($field:ident).+: $type:ty as text $parse:expr, $help:literal $(, $shown:expr)?) => {
        setting!(@row $name, $flag, $help, $crate::config::setting::no_choices, [$($field).+: $type], [$($shown)?],
            |text| match $crate::config::setting::yaml::<String>(text)? {
                Some(text) => ($parse)(&text).map(Some),
                None => Ok(None),
            },
            |words| ($parse)($crate::config::setting::last(words)))
    };
    ($name:literal, $flag:literal, $($field:ident).+: $type:ty = $parse:expr, $help:literal $(, $shown:expr)?) => {
        setting!(@row $name, $flag, $help, $crate::config::setting::no_choices, [$($field).+: $type], [$($shown)?],
            $crate::config::setting::yaml::<$type>,
            |words| ($parse)($crate::config::setting::last(words)))
    };
    ($name:literal, $flag:literal, $($field:ident).+: $type:ty, $help:literal $(, $shown:expr)?) => {
        setting!(@row $name, $flag, $help, <$type as $crate::config::setting::FlagValue>::choices,
            [$($field).+: $type], [$($shown)?],
            $crate::config::setting::yaml::<$type>,
            <$type as $crate::config::setting::FlagValue>::read)
    };
    ($name:literal, $($field:ident).+: $type:ty, $help:literal $(, $shown:expr)?) => {
        setting!(@row $name, "", $help, $crate::config::setting::no_choices, [$($field).+: $type], [$($shown)?],
            $crate::config::setting::yaml::<$type>,
            |_| Err(String::from("it has no flag")))
    };
    (@row $name:literal, $flag:literal, $help:literal, $choices:expr, [$($field:ident).+: $type:ty], [$($shown:expr)?],
        $yaml:expr, $words:expr) => {
        $crate::config::setting::Setting {
            name: $name,
            flag: $flag,
            help: $help,
            scope: $crate::config::setting::Scope::All,
            form: $crate::config::setting::Form::Once,
            env: None,
            alias: None,
            choices: $choices,
            shown: setting!(@shown $($field).+ $(, $shown)?),
            from_yaml: |text| {
                let read: fn(&str) -> Result<Option<$type>, String> = $yaml;
                Ok(read(text)?.map(|value| setting!(@apply value, $($field).+)))
            },
            from_words: |words| {
                let read: fn(&[&str]) -> Result<$type, String> = $words;
                let value = read(words)?;
                Ok(setting!(@apply value, $($field).+))
            },
        }
    };
    (@shown $($field:ident).+) => { |s: &Settings| serde_json::json!(s.$($field).+) };
    (@shown $($field:ident).+, $shown:expr) => { $shown };
    (@apply $value:ident, $($field:ident).+) => {
        Box::new(move |settings: &mut Settings| {
            $crate::config::setting::Assign::assign(&mut settings.$($field).+, $value);
        }) as $crate::config::setting::Apply
    };
}
pub(super) use setting;

/// A field that takes a value of the file or of a flag.
pub(super) trait Assign<T> {
    fn assign(&mut self, value: T);
}

impl<T> Assign<T> for T {
    fn assign(&mut self, value: T) {
        *self = value;
    }
}

impl<T> Assign<T> for Option<T> {
    fn assign(&mut self, value: T) {
        *self = Some(value);
    }
}

impl Assign<OptionalAddress> for Option<SocketAddr> {
    fn assign(&mut self, OptionalAddress(value): OptionalAddress) {
        *self = value;
    }
}

/// Reads the one value of a text such as `name: value`.
pub(super) fn yaml<T: DeserializeOwned>(text: &str) -> Result<Option<T>, String> {
    let mut all: BTreeMap<String, Option<T>> = serde_saphyr::from_str(text).map_err(|e| e.to_string())?;
    Ok(all.pop_first().and_then(|(_, value)| value))
}

pub(super) const fn no_choices() -> Vec<PossibleValue> {
    Vec::new()
}

/// The word of a flag that is given once.
pub(super) fn last<'a>(words: &[&'a str]) -> &'a str {
    words.last().copied().unwrap_or_default()
}

/// A type of flags.
pub(super) trait FlagValue: Sized {
    /// All values, if they are few.
    fn choices() -> Vec<PossibleValue> {
        Vec::new()
    }

    /// Reads the words of a flag, in the order in which they were given.
    fn read(words: &[&str]) -> Result<Self, String>;
}

fn parsed<T: FromStr<Err: ToString>>(words: &[&str]) -> Result<T, String> {
    last(words).parse().map_err(|error: T::Err| error.to_string())
}

macro_rules! by_from_str {
    ($($type:ty),+) => {
        $(impl FlagValue for $type {
            fn read(words: &[&str]) -> Result<Self, String> {
                parsed(words)
            }
        })+
    };
}
by_from_str!(
    String,
    u8,
    u32,
    u64,
    usize,
    i32,
    i64,
    SocketAddr,
    NodeIps,
    Addresses,
    OptionalAddress,
    Ranges,
    DetectLocalMode
);

impl FlagValue for bool {
    fn choices() -> Vec<PossibleValue> {
        ["true", "false"].map(PossibleValue::new).into()
    }

    fn read(words: &[&str]) -> Result<Self, String> {
        parsed(words)
    }
}

macro_rules! by_value_enum {
    ($($type:ty),+) => {
        $(impl FlagValue for $type {
            fn choices() -> Vec<PossibleValue> {
                let all = <Self as clap::ValueEnum>::value_variants();
                all.iter().filter_map(clap::ValueEnum::to_possible_value).collect()
            }

            fn read(words: &[&str]) -> Result<Self, String> {
                <Self as clap::ValueEnum>::from_str(last(words), false)
            }
        })+
    };
}
by_value_enum!(LogFormat, PodNetwork, RulesLayout);

/// One of few values, as file and flag write it.
pub(super) fn choice<T: clap::ValueEnum>(value: &T) -> Value {
    json!(value.to_possible_value().map(|value| value.get_name().to_owned()))
}

impl FlagValue for PathBuf {
    fn read(words: &[&str]) -> Result<Self, String> {
        match last(words) {
            "" => Err("it is empty".to_owned()),
            path => Ok(path.into()),
        }
    }
}

/// A path, or an empty one that means none.
#[allow(clippy::unnecessary_wraps, reason = "the signature of a parser of the table")]
pub(super) fn any_path(text: &str) -> Result<PathBuf, String> {
    Ok(text.into())
}

impl FlagValue for Vec<PathBuf> {
    fn read(words: &[&str]) -> Result<Self, String> {
        words.iter().map(|word| PathBuf::read(&[word])).collect()
    }
}

/// Separated by commas, in one word or several.
impl FlagValue for Vec<String> {
    fn read(words: &[&str]) -> Result<Self, String> {
        Ok(words.iter().flat_map(|word| word.split(',')).map(str::to_owned).collect())
    }
}

/// `name=value,name=value`; an empty text is an empty setting.
impl FlagValue for BTreeMap<String, String> {
    fn read(words: &[&str]) -> Result<Self, String> {
        key_values(last(words), '=')
    }
}

/// Parses `name<value,name<value`.
pub(super) fn key_values(text: &str, sign: char) -> Result<BTreeMap<String, String>, String> {
    let one = |part: &str| {
        let (name, value) =
            part.split_once(sign).ok_or_else(|| format!("{part:?} is not of the form NAME{sign}VALUE"))?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    text.split(',').filter(|part| !part.trim().is_empty()).map(one).collect()
}

/// `dedicated=db:NoSchedule,gpu:NoExecute`
impl FlagValue for Vec<Taint> {
    fn read(words: &[&str]) -> Result<Self, String> {
        let one = |part: &str| {
            let (what, effect) =
                part.trim().rsplit_once(':').ok_or_else(|| format!("{part:?} is not of the form KEY=VALUE:EFFECT"))?;
            let (key, value) = what.split_once('=').map_or((what, None), |(key, value)| (key, Some(value)));
            let value = value.filter(|value| !value.is_empty()).map(str::to_owned);
            Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), time_added: None })
        };
        last(words).split(',').filter(|part| !part.trim().is_empty()).map(one).collect()
    }
}

/// Parses `10Mi`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let size = text.parse::<windlass_kit::quantity::Quantity>().ok().and_then(|q| u64::try_from(q.units()).ok());
    size.ok_or_else(|| format!("{text:?} is not a size such as 10Mi"))
}

/// Parses `30000-32767`.
pub(super) fn ports(text: &str) -> Result<std::ops::RangeInclusive<u16>, String> {
    let wrong = || format!("{text:?} is not a range of ports such as 30000-32767");
    let (from, to) = text.split_once('-').ok_or_else(wrong)?;
    let from: u16 = from.trim().parse().map_err(|_| wrong())?;
    let to: u16 = to.trim().parse().map_err(|_| wrong())?;
    if from == 0 || from > to {
        return Err(wrong());
    }
    Ok(from..=to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_written_as_kubelets() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let below = key_values("memory.available<1Gi, nodefs.available<10%", '<').unwrap();
        assert_eq!(below, map(&[("memory.available", "1Gi"), ("nodefs.available", "10%")]));
        assert!(key_values("", '<').unwrap().is_empty());
        assert!(key_values("memory.available=1Gi", '<').unwrap_err().contains("NAME<VALUE"));
        let labels = BTreeMap::read(&["zone=a, example.com/disk="]).unwrap();
        assert_eq!(labels, map(&[("zone", "a"), ("example.com/disk", "")]));
        assert!(BTreeMap::read(&["zone"]).unwrap_err().contains("NAME=VALUE"));
        let taints = Vec::<Taint>::read(&["a=b:NoSchedule,c:NoExecute"]).unwrap();
        let read: Vec<(&str, Option<&str>, &str)> =
            taints.iter().map(|t| (t.key.as_str(), t.value.as_deref(), t.effect.as_str())).collect();
        assert_eq!(read, [("a", Some("b"), "NoSchedule"), ("c", None, "NoExecute")]);
        assert!(Vec::<Taint>::read(&["a=b"]).unwrap_err().contains("KEY=VALUE:EFFECT"));
        assert_eq!(Vec::<String>::read(&["a,b", "c"]).unwrap(), ["a", "b", "c"]);
        assert!(PathBuf::read(&[""]).is_err() && any_path("").is_ok());
        assert!(ports("9-3").is_err() && ports("0-3").is_err() && ports("1-3") == Ok(1..=3));
        assert_eq!((bytes("10Mi"), bytes("-1").is_err()), (Ok(10 << 20), true));
    }
}
