//! The kinds that the API serves, from its discovery documents.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResourceList;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use windlass_kit::group_version::GroupVersion;
use windlass_kit::objects::storage_version;

use super::error;

/// One resource type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) resource: ApiResource,
    pub(crate) namespaced: bool,
    pub(crate) verbs: Vec<String>,
}

impl Kind {
    pub(crate) fn has(&self, verbs: &[&str]) -> bool {
        verbs.iter().all(|verb| self.verbs.iter().any(|v| v == verb))
    }

    /// Plural and group, such as `pods` or `leases.coordination.k8s.io`.
    pub(crate) fn group_resource(&self) -> String {
        group_resource(&self.resource)
    }

    /// The API of one namespace; the namespace is ignored for cluster-scoped kinds.
    pub(crate) fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        if self.namespaced {
            Api::namespaced_with(client.clone(), namespace, &self.resource)
        } else {
            Api::all_with(client.clone(), &self.resource)
        }
    }

    /// The API of all namespaces.
    pub(crate) fn all(&self, client: &Client) -> Api<DynamicObject> {
        Api::all_with(client.clone(), &self.resource)
    }
}

/// Plural and group, such as `pods` or `leases.coordination.k8s.io`.
pub(crate) fn group_resource(resource: &ApiResource) -> String {
    with_group(&resource.plural, &resource.group)
}

/// A kind or plural with its group, such as `Deployment.apps`; alone in the core group.
pub(crate) fn with_group(name: &str, group: &str) -> String {
    if group.is_empty() { name.to_owned() } else { format!("{name}.{group}") }
}

/// The group of an apiVersion; empty for the core group.
pub(crate) fn group_of(api_version: &str) -> &str {
    GroupVersion::parse(api_version).group
}

/// The discovery document of one `group/version`; empty when it is not served.
pub(crate) async fn document(client: &Client, group_version: &str) -> Result<APIResourceList, kube::Error> {
    let list = if group_version.contains('/') {
        client.list_api_group_resources(group_version).await
    } else {
        client.list_core_api_resources(group_version).await
    };
    match list {
        Err(error) if error::is_not_found(&error) => Ok(APIResourceList::default()),
        list => list,
    }
}

/// All kinds, each in its storage version, which needs no conversion that could fail, or in the preferred version of
/// its group if that is not published; and the group versions that could not be discovered.
#[derive(Debug, Clone, Default)]
pub(crate) struct RestMapper {
    pub(crate) all: Vec<Arc<Kind>>,
    /// Group versions whose documents could not be read, with the reason.
    pub(crate) failed: Vec<(String, String)>,
}

impl RestMapper {
    /// Reads discovery. A group that fails does not hide the others.
    ///
    /// # Errors
    /// When the list of groups or the core group cannot be read.
    pub(crate) async fn discover(client: &Client) -> Result<Self, kube::Error> {
        let mut kinds = Self::default();
        kinds.add("v1", &client.list_core_api_resources("v1").await?);
        for group in client.list_api_groups().await?.groups {
            let preferred = group.preferred_version.as_ref().map(|v| v.group_version.clone());
            // The preferred version first: of one kind in two versions the first stays.
            let mut versions: Vec<String> = group.versions.iter().map(|v| v.group_version.clone()).collect();
            versions.sort_by_key(|v| Some(v) != preferred.as_ref());
            for version in versions {
                match client.list_api_group_resources(&version).await {
                    Ok(list) => kinds.add(&version, &list),
                    Err(error) => kinds.failed.push((version, error.to_string())),
                }
            }
        }
        Ok(kinds)
    }

    /// Keeps the previous kinds of the group versions that failed now: they are still served, or a later discovery
    /// reports them as gone.
    pub(crate) fn keep_unread_of(&mut self, before: &Self) {
        let unread = |kind: &&Arc<Kind>| self.failed.iter().any(|(version, _)| *version == kind.resource.api_version);
        let kept: Vec<Arc<Kind>> = before.all.iter().filter(unread).cloned().collect();
        for kind in kept {
            // Not in another version of its group meanwhile: its watches would be restarted.
            self.all.retain(|other| other.group_resource() != kind.group_resource());
            self.all.push(kind);
        }
    }

    /// The kinds of one `group/version`; none when it is not served.
    pub(crate) async fn of_version(client: &Client, group_version: &str) -> Result<Self, kube::Error> {
        Ok(Self::of_document(group_version, &document(client, group_version).await?))
    }

    /// The kinds in the discovery document of one `group/version`.
    pub(crate) fn of_document(group_version: &str, list: &APIResourceList) -> Self {
        let mut kinds = Self::default();
        kinds.add(group_version, list);
        kinds
    }

    fn add(&mut self, group_version: &str, list: &APIResourceList) {
        let GroupVersion { group, version } = GroupVersion::parse(group_version);
        for found in &list.resources {
            let known = |k: &Arc<Kind>| k.resource.group == group && k.resource.plural == found.name;
            let known = self.all.iter().position(known);
            let is_stored = found
                .storage_version_hash
                .as_ref()
                .is_some_and(|hash| *hash == storage_version::hash(group_version, &found.kind));
            if found.name.contains('/') || (known.is_some() && !is_stored) {
                continue;
            }
            let kind = Arc::new(Kind {
                resource: ApiResource {
                    group: group.to_owned(),
                    version: version.to_owned(),
                    api_version: group_version.to_owned(),
                    kind: found.kind.clone(),
                    plural: found.name.clone(),
                },
                namespaced: found.namespaced,
                verbs: found.verbs.clone(),
            });
            match known {
                Some(at) => self.all[at] = kind,
                None => self.all.push(kind),
            }
        }
    }

    /// By apiVersion and kind; another version of the same group will do.
    pub(crate) fn find(&self, api_version: &str, kind: &str) -> Option<Arc<Kind>> {
        let group = group_of(api_version);
        let same = |k: &&Arc<Kind>| k.resource.group == group && k.resource.kind == kind;
        let exact = self.all.iter().filter(same).find(|k| k.resource.api_version == api_version);
        exact.or_else(|| self.all.iter().find(same)).cloned()
    }
}

/// Kinds by group and plural, for comparing two discoveries.
pub(crate) fn by_name(kinds: &RestMapper) -> BTreeMap<String, Arc<Kind>> {
    kinds.all.iter().map(|k| (k.group_resource(), Arc::clone(k))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_could_not_be_read_is_still_known() {
        let kinds = |documents: &[(&str, &str)], failed: &[&str]| {
            let mut kinds = RestMapper::default();
            for (version, plural) in documents {
                let resource =
                    json!({"name": plural, "kind": plural, "singularName": "", "namespaced": true, "verbs": []});
                let document = json!({"groupVersion": version, "resources": [resource]});
                kinds.add(version, &serde_json::from_value(document).unwrap());
            }
            kinds.failed = failed.iter().map(|version| ((*version).to_owned(), "503".to_owned())).collect();
            kinds
        };
        let before = kinds(&[("apps/v1", "deployments"), ("a/v2", "widgets"), ("b/v1", "gadgets")], &[]);
        for (found, all) in [
            // A group that failed is as it was; one that is no longer there is gone.
            (kinds(&[], &["apps/v1"]), vec!["apps/v1 deployments"]),
            // Also where another version of it could be read.
            (kinds(&[("a/v1", "widgets")], &["a/v2"]), vec!["a/v2 widgets"]),
            (kinds(&[("a/v1", "widgets")], &[]), vec!["a/v1 widgets"]),
            (kinds(&[("b/v1", "others")], &["c/v1"]), vec!["b/v1 others"]),
        ] {
            let mut found = found;
            found.keep_unread_of(&before);
            let seen: Vec<String> =
                found.all.iter().map(|k| format!("{} {}", k.resource.api_version, k.resource.plural)).collect();
            assert_eq!(seen, all);
        }
    }

    /// Objects of a definition with a conversion webhook can be read in the version in which they are stored, and in no other.
    #[test]
    fn a_kind_is_used_in_the_version_in_which_it_is_stored() {
        let document = |stored: Option<&str>| {
            let hash = stored.map(|version| storage_version::hash(version, "Widget"));
            let found = json!({"name": "widgets", "kind": "Widget", "singularName": "widget", "namespaced": true,
                "verbs": ["list"], "storageVersionHash": hash});
            serde_json::from_value(json!({"groupVersion": "", "resources": [found]})).unwrap()
        };
        for (stored, used) in
            [(None, "a/v1"), (Some("a/v1"), "a/v1"), (Some("a/v1beta1"), "a/v1beta1"), (Some("a/v9"), "a/v1")]
        {
            let mut kinds = RestMapper::default();
            kinds.add("a/v1", &document(stored));
            kinds.add("a/v1beta1", &document(stored));
            let all: Vec<&str> = kinds.all.iter().map(|kind| kind.resource.api_version.as_str()).collect();
            assert_eq!(all, [used], "{stored:?}");
        }
    }
}
