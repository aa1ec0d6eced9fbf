//! Media types with their parameters. What a client asks for and what an extension API server answers with is read here alone.
//! Pure.
//!
//! Upstream: `MediaTypeOptions` of `k8s.io/apiserver/pkg/endpoints/handlers/negotiation`.

/// The group and kind of aggregated discovery, and its versions that are read.
const DISCOVERY: (&str, &str) = ("apidiscovery.k8s.io", "APIGroupDiscoveryList");
const DISCOVERY_VERSIONS: [&str; 2] = ["v2", "v2beta1"];

macro_rules! aggregated_discovery {
    ($version:literal) => {
        concat!("application/json;g=apidiscovery.k8s.io;v=", $version, ";as=APIGroupDiscoveryList")
    };
}

/// The media type of the discovery document with all groups that this server has.
pub(crate) const AGGREGATED_DISCOVERY: &str = aggregated_discovery!("v2");
/// The same of the documents that are read of extension API servers.
pub(crate) const ACCEPT_AGGREGATED_DISCOVERY: &str =
    concat!(aggregated_discovery!("v2"), ",", aggregated_discovery!("v2beta1"));

/// A media type, or a clause of an `Accept` header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MediaType<'a> {
    /// The type without its parameters.
    pub(crate) name: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

/// What an object is converted to before it is written: the parameters `g`, `v` and `as`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Convert<'a> {
    pub(crate) group: &'a str,
    pub(crate) version: &'a str,
    pub(crate) kind: &'a str,
}

impl<'a> MediaType<'a> {
    pub(crate) fn parse(text: &'a str) -> Self {
        let (name, parameters) = text.split_once(';').unwrap_or((text, ""));
        let parameters = parameters.split(';').filter_map(|part| part.trim().split_once('='));
        Self {
            name: name.trim(),
            parameters: parameters.map(|(name, value)| (name.trim(), value.trim().trim_matches('"'))).collect(),
        }
    }

    /// The value of a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// What an object is converted to; `None` without any of the parameters.
    pub(crate) fn convert(&self) -> Option<Convert<'a>> {
        let [group, version, kind] = ["g", "v", "as"].map(|name| self.parameter(name));
        let convert = Convert {
            group: group.unwrap_or_default(),
            version: version.unwrap_or_default(),
            kind: kind.unwrap_or_default(),
        };
        [group, version, kind].iter().any(Option::is_some).then_some(convert)
    }

    /// Whether it is that of a discovery document with all groups, in a version that is read.
    pub(crate) fn is_aggregated_discovery(&self) -> bool {
        self.discovery_version().is_some()
    }

    /// The version of the discovery document with all groups that it stands for.
    pub(crate) fn discovery_version(&self) -> Option<&'a str> {
        let Convert { group, version, kind } = self.convert().filter(|_| self.name == "application/json")?;
        ((group, kind) == DISCOVERY && DISCOVERY_VERSIONS.contains(&version)).then_some(version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_with_all_groups_are_known_by_their_type() {
        for (media_type, version) in [
            (AGGREGATED_DISCOVERY, Some("v2")),
            ("application/json; g=apidiscovery.k8s.io; v=v2beta1; as=APIGroupDiscoveryList", Some("v2beta1")),
            ("application/json;as=\"APIGroupDiscoveryList\";v=\"v2\";g=apidiscovery.k8s.io;q=0.5", Some("v2")),
            ("application/json;g=apidiscovery.k8s.io;v=v1;as=APIGroupDiscoveryList", None),
            ("application/json;g=apidiscovery.k8s.io;v=v2;as=Table", None),
            ("application/json;v=v2;as=APIGroupDiscoveryList", None),
            ("application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", None),
            ("application/json", None),
            ("", None),
        ] {
            assert_eq!(MediaType::parse(media_type).discovery_version(), version, "{media_type}");
        }
        for clause in ACCEPT_AGGREGATED_DISCOVERY.split(',') {
            assert!(MediaType::parse(clause).is_aggregated_discovery(), "what is asked for is read: {clause}");
        }
    }

    #[test]
    fn each_parameter_converts() {
        let of = |text| MediaType::parse(text).convert();
        assert_eq!(of("application/json;q=1"), None);
        assert_eq!(of("application/json;v=v1"), Some(Convert { version: "v1", ..Convert::default() }));
        let table = Convert { group: "meta.k8s.io", version: "v1", kind: "Table" };
        assert_eq!(of("application/json ; as=Table ;v=v1;g=meta.k8s.io"), Some(table));
    }
}
