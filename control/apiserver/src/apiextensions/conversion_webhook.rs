//! Calls the conversion webhook of a CustomResourceDefinition.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use axum::body::Bytes;
use serde_json::Value;
use windlass_apimachinery::group_version::GroupVersion;
use windlass_kit::{
    metrics::{Counter, Histogram, Metrics},
    prometheus::Text,
};

use super::conversion_review::{Fault, converted, request};
use crate::{
    apiserver::{
        generate::new_uid,
        types::{ConversionError, Converter},
    },
    webhook::{ClientConfig, ExtensionClients, MAX_REVIEW_BYTES, ReviewVersion},
};

/// How long a call may take, as upstream's client for webhooks has it.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What all conversion webhooks are called with.
#[derive(Debug, Clone)]
pub(crate) struct ConversionWebhooks {
    clients: Arc<ExtensionClients>,
    metrics: Arc<ConversionMetrics>,
}

impl ConversionWebhooks {
    pub(crate) fn new(clients: Arc<ExtensionClients>) -> Self {
        Self { clients, metrics: Arc::default() }
    }

    /// Writes what is counted of the calls.
    pub(crate) fn write(&self, page: &mut Text) {
        self.metrics.write(page);
    }

    /// The converter of a definition of the strategy `Webhook`.
    pub(super) fn converter(&self, definition: &Value) -> Arc<dyn Converter> {
        let webhook = &definition["spec"]["conversion"]["webhook"];
        let client = ClientConfig::read(&webhook["clientConfig"]).map(|mut client| {
            // As upstream: white space is no authority.
            if client.ca_bundle.trim_ascii().is_empty() {
                client.ca_bundle.clear();
            }
            client
        });
        let versions = webhook["conversionReviewVersions"].as_array().into_iter().flatten();
        Arc::new(ConversionWebhook {
            webhooks: self.clone(),
            definition: definition["metadata"]["name"].as_str().unwrap_or("").to_owned(),
            client,
            version: ReviewVersion::first_known(versions.filter_map(Value::as_str)),
        })
    }
}

/// The webhook of one definition.
#[derive(Debug)]
struct ConversionWebhook {
    webhooks: ConversionWebhooks,
    definition: String,
    client: Result<ClientConfig, String>,
    version: Option<ReviewVersion>,
}

#[async_trait]
impl Converter for ConversionWebhook {
    async fn convert(&self, objects: Vec<Value>, to: &str) -> Result<Vec<Value>, ConversionError> {
        let Some(first) = objects.first() else { return Ok(objects) };
        let text = |field: &str| first[field].as_str().unwrap_or("").to_owned();
        let (from, kind) = (text("apiVersion"), text("kind"));
        let started = Instant::now();
        let converted = self.ask(&objects, to).await;
        let fault = converted.as_ref().err().map(|fault| fault.failure);
        self.webhooks.metrics.called(&self.definition, (&from, to), fault, started.elapsed());
        converted.map_err(|fault| {
            let kind = GroupVersion::parse(&from).with_kind(&kind);
            let why = format!("conversion webhook for {kind} {}", fault.message);
            if fault.is_of_call() { ConversionError::of_all(why) } else { ConversionError::of_object(why) }
        })
    }
}

impl ConversionWebhook {
    async fn ask(&self, objects: &[Value], to: &str) -> Result<Vec<Value>, Fault> {
        let version = self.version.ok_or_else(|| Fault::calling("no supported conversion review versions"))?;
        let client = self.client.as_ref().map_err(Fault::calling)?;
        let uid = new_uid().map_err(|error| Fault::calling(error.message()))?;
        let body = Bytes::from(request(version, &uid, to, objects).to_string());
        // What is asked for once more, and as much as a review of one object may add.
        let max_bytes = body.len() + MAX_REVIEW_BYTES;
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        let answer = self.webhooks.clients.post(client, body, max_bytes, deadline).await.map_err(Fault::calling)?;
        converted(version, &uid, &answer, objects, to)
    }
}

/// What is counted, under upstream's names.
#[derive(Debug)]
struct ConversionMetrics {
    of_definition: Histogram<4>,
    requests: Counter<2>,
    durations: Histogram<2>,
}

impl Default for ConversionMetrics {
    fn default() -> Self {
        const OF_DEFINITION: &[f64] =
            &[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384];
        const OF_ALL: &[f64] = &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
        Self {
            of_definition: Histogram::new(
                "apiserver_crd_conversion_webhook_duration_seconds",
                "How long conversions of custom resources by webhooks took.",
                ["crd_name", "from_version", "to_version", "succeeded"],
                OF_DEFINITION,
            ),
            requests: Counter::new(
                "apiserver_conversion_webhook_request_total",
                "Calls of conversion webhooks.",
                ["result", "failure_type"],
            ),
            durations: Histogram::new(
                "apiserver_conversion_webhook_duration_seconds",
                "How long calls of conversion webhooks took.",
                ["result", "failure_type"],
                OF_ALL,
            ),
        }
    }
}

impl ConversionMetrics {
    fn called(&self, definition: &str, (from, to): (&str, &str), failure: Option<&str>, took: Duration) {
        let version = |api_version: &str| api_version.rsplit('/').next().unwrap_or("").to_owned();
        let (result, succeeded) = if failure.is_some() { ("failure", "false") } else { ("success", "true") };
        let labels = [result, failure.unwrap_or("")];
        self.requests.add(labels);
        self.durations.observe(labels, took.as_secs_f64());
        self.of_definition.observe([definition, &version(from), &version(to), succeeded], took.as_secs_f64());
    }
}

impl Metrics for ConversionMetrics {
    fn write(&self, page: &mut Text) {
        self.of_definition.write(page);
        self.requests.write(page);
        self.durations.write(page);
    }
}
