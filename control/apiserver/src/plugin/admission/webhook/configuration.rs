//! The webhooks of all configurations, in the order in which they are called: configurations by name, each in its own order.
//! Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::Deserialize;
use serde_json::Value;
use windlass_apimachinery::selectors::LabelSelector;

use crate::{
    apiserver::{AdmissionAttributes, ApiError},
    cel::{Conditions, Deferred},
    plugin::{
        admission::predicates::{Criteria, is_exempt, rules::read_rules},
        store_view::{Apply, StoreView, View},
    },
    store::Key,
    webhook::{ClientConfig, ReviewVersion},
};

/// Configurations of webhooks, which no webhook sees: else one could not be removed any more.
const CONFIGURATIONS: [&str; 2] = ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"];

/// How long a call may last where the configuration does not say; its default in stored objects.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// A webhook, as it is called.
#[derive(Debug)]
pub(super) struct Webhook {
    pub(super) name: String,
    /// The name of its configuration.
    pub(super) configuration: String,
    /// Identifies it among all, also among those of its name in one configuration.
    pub(super) id: String,
    pub(super) client: Result<ClientConfig, String>,
    pub(super) criteria: Criteria,
    /// Failures to call it are as if it had admitted the request.
    pub(super) ignores_failures: bool,
    /// Calls of dry runs have no effect.
    pub(super) has_no_side_effects: bool,
    pub(super) timeout: Duration,
    /// The version of the reviews that it is sent, the first that this server knows.
    pub(super) review_version: Option<ReviewVersion>,
    /// Called once more if something has changed after its call.
    pub(super) is_reinvoked: bool,
    /// When it is called at all, if that is limited; compiled when the first request needs it.
    pub(super) conditions: Option<Deferred<Conditions>>,
}

/// A webhook of a configuration, as it is stored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    name: String,
    client_config: Value,
    #[serde(default)]
    rules: Vec<Value>,
    #[serde(default)]
    failure_policy: Option<String>,
    #[serde(default)]
    match_policy: Option<String>,
    #[serde(default)]
    namespace_selector: Value,
    #[serde(default)]
    object_selector: Value,
    #[serde(default)]
    side_effects: Option<String>,
    #[serde(default)]
    timeout_seconds: Option<u64>,
    admission_review_versions: Vec<String>,
    #[serde(default)]
    reinvocation_policy: Option<String>,
    #[serde(default)]
    match_conditions: Vec<Value>,
}

impl Stored {
    fn into_webhook(self, configuration: &str, id: String) -> Result<Webhook, String> {
        let selector = |value: &Value| LabelSelector::from_label_selector(value).map_err(|error| error.to_string());
        Ok(Webhook {
            client: ClientConfig::read(&self.client_config),
            criteria: Criteria {
                rules: read_rules(&self.rules)?,
                excluded: Vec::new(),
                is_open: false,
                matches_equivalent: self.match_policy.as_deref() != Some("Exact"),
                namespace_selector: selector(&self.namespace_selector)?,
                object_selector: selector(&self.object_selector)?,
            },
            // Whatever is no word that lets failures pass does not.
            ignores_failures: self.failure_policy.as_deref() == Some("Ignore"),
            has_no_side_effects: matches!(self.side_effects.as_deref(), Some("None" | "NoneOnDryRun")),
            timeout: self.timeout_seconds.map_or(DEFAULT_TIMEOUT, Duration::from_secs),
            review_version: ReviewVersion::first_known(self.admission_review_versions.iter().map(String::as_str)),
            is_reinvoked: self.reinvocation_policy.as_deref() == Some("IfNeeded"),
            conditions: (!self.match_conditions.is_empty()).then(|| {
                let conditions = self.match_conditions;
                Deferred::new(format!("webhooks/{configuration}"), move || Conditions::read(&conditions))
            }),
            configuration: configuration.to_owned(),
            name: self.name,
            id,
        })
    }
}

/// The webhooks of one configuration.
///
/// # Errors
/// When one of them cannot be read: nobody knows then whom it guards.
fn read(name: &str, configuration: &Value) -> Result<Vec<Arc<Webhook>>, String> {
    let mut webhooks = Vec::new();
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for stored in configuration["webhooks"].as_array().into_iter().flatten() {
        let stored = Stored::deserialize(stored).map_err(|error| error.to_string())?;
        let count = counts.entry(stored.name.clone()).or_default();
        let id = format!("{name}/{}/{count}", stored.name);
        *count += 1;
        webhooks.push(Arc::new(stored.into_webhook(name, id)?));
    }
    Ok(webhooks)
}

/// All webhooks, or why one cannot be read.
type Webhooks = Result<Arc<[Arc<Webhook>]>, String>;

/// All configurations of a kind: those of webhooks that mutate, or that validate.
pub(super) struct Configurations<const MUTATING: bool> {
    by_name: BTreeMap<String, Result<Vec<Arc<Webhook>>, String>>,
    webhooks: Webhooks,
}

impl<const MUTATING: bool> Default for Configurations<MUTATING> {
    fn default() -> Self {
        Self { by_name: BTreeMap::new(), webhooks: Ok(Arc::default()) }
    }
}

impl<const MUTATING: bool> View for Configurations<MUTATING> {
    const RESOURCES: &'static [(&'static str, Apply<Self>)] = &[(
        if MUTATING {
            "mutatingwebhookconfigurations.admissionregistration.k8s.io"
        } else {
            "validatingwebhookconfigurations.admissionregistration.k8s.io"
        },
        Self::set,
    )];
}

impl<const MUTATING: bool> Configurations<MUTATING> {
    fn webhooks(&self) -> Webhooks {
        self.webhooks.clone()
    }

    fn set(&mut self, key: &Key, configuration: Option<&Value>) {
        match configuration {
            Some(configuration) => drop(self.by_name.insert(key.name.clone(), read(&key.name, configuration))),
            None => drop(self.by_name.remove(&key.name)),
        }
        let mut all = Vec::new();
        for (name, webhooks) in &self.by_name {
            match webhooks {
                Ok(webhooks) => all.extend(webhooks.iter().cloned()),
                Err(why) => {
                    self.webhooks = Err(format!("the webhooks of {name:?} cannot be read: {why}"));
                    return;
                }
            }
        }
        self.webhooks = Ok(all.into());
    }
}

/// The webhooks that a request may concern, in the order in which they are called.
///
/// # Errors
/// When nobody knows them: nothing is admitted then.
pub(super) fn webhooks_for<const MUTATING: bool>(
    configurations: &StoreView<Configurations<MUTATING>>,
    attributes: &AdmissionAttributes<'_>,
) -> Result<Arc<[Arc<Webhook>]>, ApiError> {
    if is_exempt(attributes, &CONFIGURATIONS) {
        return Ok(Arc::default());
    }
    let not_ready = || ApiError::new(403, "Forbidden", "not yet ready to handle request");
    configurations.read(Configurations::webhooks).ok_or_else(not_ready)?.map_err(ApiError::internal)
}
