//! Values as upstream's internal types write them: its names of the fields, in its order, also of those that are not set.
//! Pure.

use serde::{
    Serialize, Serializer,
    ser::{Error as _, SerializeMap},
};
use serde_json::{Value, ser::PrettyFormatter};
use windlass_apimachinery::line_diff::line_diff;

/// A type: a line for each field with its internal name, its name in JSON and what stands for one that is not set: JSON,
/// or `*` for a pointer to a struct, `{}` for a struct, `[]` for a list of structs. Their fields follow, one space deeper, or
/// stand in the type that a fourth word names.
pub(crate) type Table = &'static str;

/// Upstream's type of a container's context.
pub(crate) const SECURITY_CONTEXT: Table = "\
Capabilities capabilities *
 Add add null
 Drop drop null
Privileged privileged null
SELinuxOptions seLinuxOptions *
 User user \"\"
 Role role \"\"
 Type type \"\"
 Level level \"\"
WindowsOptions windowsOptions *
 GMSACredentialSpecName gmsaCredentialSpecName null
 GMSACredentialSpec gmsaCredentialSpec null
 RunAsUserName runAsUserName null
 HostProcess hostProcess null
RunAsUser runAsUser null
RunAsGroup runAsGroup null
RunAsNonRoot runAsNonRoot null
ReadOnlyRootFilesystem readOnlyRootFilesystem null
AllowPrivilegeEscalation allowPrivilegeEscalation null
ProcMount procMount null
SeccompProfile seccompProfile *
 Type type \"\"
 LocalhostProfile localhostProfile null
AppArmorProfile appArmorProfile *
 Type type \"\"
 LocalhostProfile localhostProfile null
";

/// Upstream's type of a term of a node selector.
pub(crate) const NODE_SELECTOR_TERM: Table = "\
MatchExpressions matchExpressions []
 Key key \"\"
 Operator operator \"\"
 Values values null
MatchFields matchFields []
 Key key \"\"
 Operator operator \"\"
 Values values null
";

/// The types that others have fields of, by upstream's names.
const SHARED: [(&str, Table); 2] = [("SecurityContext", SECURITY_CONTEXT), ("NodeSelectorTerm", NODE_SELECTOR_TERM)];

#[derive(Debug)]
struct Member {
    name: &'static str,
    json: &'static str,
    unset: &'static str,
    members: Vec<Member>,
}

/// The fields of a type.
fn all_members(table: Table) -> Vec<Member> {
    let lines: Vec<&str> = table.lines().filter(|line| !line.is_empty()).collect();
    members(&mut lines.as_slice(), 0)
}

/// The fields at a depth, up to the first line that is less deep.
fn members(lines: &mut &[&'static str], depth: usize) -> Vec<Member> {
    let mut found = Vec::new();
    while let Some((line, rest)) = lines.split_first()
        && line.len() - line.trim_start().len() == depth
    {
        *lines = rest;
        let mut words = line.split_whitespace();
        let mut word = || words.next().unwrap_or_default();
        let (name, json, unset, shared) = (word(), word(), word(), word());
        let members = match SHARED.iter().find(|(known, _)| *known == shared) {
            Some((_, table)) => all_members(table),
            None => members(lines, depth + 1),
        };
        found.push(Member { name, json, unset, members });
    }
    found
}

/// A value of an internal type.
#[derive(Debug)]
pub(crate) enum Internal<'a> {
    Struct(Vec<(&'static str, Internal<'a>)>),
    List(Vec<Internal<'a>>),
    Plain(&'a Value),
    Unset(&'static str),
}

impl<'a> Internal<'a> {
    /// The value of a type.
    pub(crate) fn new(table: Table, value: &'a Value) -> Self {
        Self::of_struct(&all_members(table), value)
    }

    /// The value of a list of structs of a type.
    pub(crate) fn list(table: Table, value: &'a Value) -> Self {
        let members = all_members(table);
        match value {
            Value::Array(items) => Self::List(items.iter().map(|item| Self::of_struct(&members, item)).collect()),
            _ => Self::Unset("null"),
        }
    }

    fn of_struct(members: &[Member], value: &'a Value) -> Self {
        Self::Struct(members.iter().map(|member| (member.name, Self::of_field(member, &value[member.json]))).collect())
    }

    fn of_field(member: &Member, value: &'a Value) -> Self {
        match (member.unset, value) {
            ("{}", value) => Self::of_struct(&member.members, value),
            ("*" | "[]", Value::Null) => Self::Unset("null"),
            (unset, Value::Null) => Self::Unset(unset),
            ("*", value) => Self::of_struct(&member.members, value),
            ("[]", Value::Array(items)) => {
                Self::List(items.iter().map(|item| Self::of_struct(&member.members, item)).collect())
            }
            (_, value) => Self::Plain(value),
        }
    }

    /// In one line.
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Each field in a line.
    fn lines(&self) -> String {
        let mut bytes = Vec::new();
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, PrettyFormatter::with_indent(b" "));
        // Values that came as JSON can be written.
        let _ = self.serialize(&mut serializer);
        String::from_utf8(bytes).unwrap_or_default()
    }

    /// How a new value differs from this one.
    pub(crate) fn diff(&self, new: &Self) -> String {
        line_diff(&self.lines(), &new.lines())
    }
}

impl Serialize for Internal<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Struct(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                fields.iter().try_for_each(|(name, value)| map.serialize_entry(name, value))?;
                map.end()
            }
            Self::List(items) => items.serialize(serializer),
            Self::Plain(value) => value.serialize(serializer),
            Self::Unset(json) => serde_json::from_str::<Value>(json).map_err(S::Error::custom)?.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Internal;

    const TABLE: &str = "\
Name name \"\"
Source source *
 FSType fsType \"\"
Terms terms []
 Key key \"\"
Resources resources {}
 Limits limits null
";

    #[test]
    fn a_value_has_all_fields_of_its_type() {
        let rows = [
            (json!({}), r#"{"Name":"","Source":null,"Terms":null,"Resources":{"Limits":null}}"#),
            (
                json!({"name": "n", "source": {}, "terms": [{"key": "k"}, {}], "resources": {"limits": {"cpu": "1"}}}),
                r#"{"Name":"n","Source":{"FSType":""},"Terms":[{"Key":"k"},{"Key":""}],"Resources":{"Limits":{"cpu":"1"}}}"#,
            ),
        ];
        for (value, wanted) in rows {
            assert_eq!(Internal::new(TABLE, &value).text(), wanted);
        }
    }

    #[test]
    fn a_difference_is_shown_by_lines() {
        let (old, new) = (json!({"name": "a"}), json!({"name": "b"}));
        let shown = Internal::new(TABLE, &old).diff(&Internal::new(TABLE, &new));
        assert_eq!(
            shown,
            "@@ -1,5 +1,5 @@\n {\n- \"Name\": \"a\",\n+ \"Name\": \"b\",\n  \"Source\": null,\n  \"Terms\": null,\n  \"Resources\": {\n"
        );
    }
}
