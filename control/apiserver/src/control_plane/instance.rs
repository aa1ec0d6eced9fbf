//! Puts the API server together: kinds, plugins, authorizers.

use std::{net::Ipv4Addr, ops::RangeInclusive, sync::Arc};

use windlass_identity::{
    pki::MASTERS_GROUP,
    service_account_tokens::{CONFIGURATION_PATH, ISSUER, KEY_SET_PATH, TokenIssuer},
};
use windlass_kit::metrics::Metrics as _;

use super::{AuthorizationMode, ServerOptions};
use crate::{
    aggregator::Aggregator,
    apiextensions::ConversionWebhooks,
    apiserver::{
        Api, AuditSink, Authorizer, Authorizers, Components, Document, KubeletClient, PrivilegedGroups,
        TokenAuthenticator,
    },
    kinds::{self, Environment, core::service::ServiceAllocator, priorities, types},
    metrics::Usage,
    plugin::{
        admission::{
            self, AdmissionConfiguration,
            policy::{PolicyContext, PolicyMetrics},
            webhook::{Caller, WebhookMetrics},
        },
        authenticator::{BootstrapTokens, ServiceAccountTokens, TokenUses},
        authorizer::{AlwaysAllow, AlwaysDeny, NodeAuthorizer, RbacAuthorizer},
    },
    store::Store,
    webhook::ExtensionClients,
};

/// Configuration of the API server.
#[derive(Debug, Clone)]
pub(crate) struct ApiConfig {
    /// First address and prefix length of the service CIDR.
    pub(crate) service_cidr: (Ipv4Addr, u8),
    /// The node port range.
    pub(crate) node_ports: RangeInclusive<u16>,
    /// Maximum lifetime of service account tokens, in seconds.
    pub(crate) max_token_seconds: Option<i64>,
    /// Authenticators of tokens, which are asked before those of service accounts and of nodes that join.
    pub(crate) token_authenticators: Vec<Arc<dyn TokenAuthenticator>>,
    /// Records requests.
    pub(crate) audit: Option<Arc<dyn AuditSink>>,
    /// The configuration of admission plugins.
    pub(crate) admission: AdmissionConfiguration,
    /// The node of this process enforces NetworkPolicies.
    pub(crate) network_policies: bool,
    /// What kube-apiserver has flags for.
    pub(crate) options: ServerOptions,
}

impl ApiConfig {
    /// A configuration without limits, further authenticators and a record of requests.
    pub(crate) fn new(service_cidr: (Ipv4Addr, u8), node_ports: RangeInclusive<u16>) -> Self {
        Self {
            service_cidr,
            node_ports,
            max_token_seconds: None,
            token_authenticators: Vec::new(),
            audit: None,
            admission: AdmissionConfiguration::default(),
            network_policies: false,
            options: ServerOptions::default(),
        }
    }
}

/// The API server, and what its kinds share with others.
#[derive(Debug, Clone)]
pub(crate) struct Instance {
    pub(crate) api: Api,
    /// The usage that `metrics.k8s.io` shows.
    pub(crate) usage: Usage,
    /// The tokens of service accounts that are used.
    pub(crate) token_uses: Arc<TokenUses>,
    /// What converts custom resources.
    pub(crate) conversion_webhooks: ConversionWebhooks,
    /// The clients of what extends the API.
    pub(crate) extension_clients: Arc<ExtensionClients>,
    /// What passes requests on to extension API servers.
    pub(crate) aggregator: Aggregator,
    /// The cluster IPs and node ports.
    #[cfg(test)]
    pub(crate) allocator: Arc<ServiceAllocator>,
}

impl Instance {
    /// An API over `store`. Without a `kubelet` client there are no logs, without `tokens` service accounts cannot
    /// authenticate.
    pub(crate) fn new(
        store: &Store,
        config: &ApiConfig,
        kubelet: Option<KubeletClient>,
        tokens: Option<TokenIssuer>,
    ) -> Self {
        let tokens = tokens.map(Arc::new);
        let usage = Usage::default();
        let allocator = Arc::new(ServiceAllocator::new(config.service_cidr, config.node_ports.clone(), store));
        let environment = Environment {
            store: store.clone(),
            allocator: Arc::clone(&allocator),
            kubelet: kubelet.clone(),
            tokens: tokens.clone(),
            max_token_seconds: config.max_token_seconds,
            usage: usage.clone(),
            network_policies: config.network_policies,
            metrics_api: config.options.node_components,
        };
        let rbac = RbacAuthorizer::new(store.clone());
        let policy = rbac.policy();
        let rbac: Arc<dyn Authorizer> = Arc::new(rbac);
        let of_mode = |mode: &AuthorizationMode| -> Arc<dyn Authorizer> {
            match mode {
                AuthorizationMode::AlwaysAllow => Arc::new(AlwaysAllow),
                AuthorizationMode::AlwaysDeny => Arc::new(AlwaysDeny),
                AuthorizationMode::Node => Arc::new(NodeAuthorizer::new(store.clone())),
                AuthorizationMode::Rbac => Arc::clone(&rbac),
            }
        };
        let masters: Arc<dyn Authorizer> = Arc::new(PrivilegedGroups(vec![MASTERS_GROUP]));
        let modes = config.options.authorization.iter().map(of_mode);
        let authorizers = Authorizers::new(std::iter::once(masters).chain(modes).collect());
        let audiences = tokens.as_deref().map_or_else(|| vec![ISSUER.to_owned()], |tokens| tokens.audiences().to_vec());
        let documents = tokens.as_deref().map(documents).unwrap_or_default();
        let mut token_authenticators = config.token_authenticators.clone();
        let token_uses: Arc<TokenUses> = Arc::default();
        token_authenticators.extend(tokens.map(|tokens| {
            let uses = Arc::clone(&token_uses);
            Arc::new(ServiceAccountTokens { store: store.clone(), tokens, uses }) as Arc<dyn TokenAuthenticator>
        }));
        if config.options.bootstrap_tokens {
            token_authenticators.push(Arc::new(BootstrapTokens { store: store.clone(), audiences }));
        }
        let definitions = kinds::definitions(&environment);
        let metrics: Arc<WebhookMetrics> = Arc::default();
        let clients = Arc::new(ExtensionClients::new(store, kubelet));
        let conversion_webhooks = ConversionWebhooks::new(Arc::clone(&clients));
        let caller = Caller {
            store: store.clone(),
            authorizers: authorizers.clone(),
            clients: Arc::clone(&clients),
            metrics: Arc::clone(&metrics),
        };
        let policy_metrics: Arc<PolicyMetrics> = Arc::default();
        let policies = PolicyContext {
            store: store.clone(),
            authorizers: authorizers.clone(),
            metrics: Arc::clone(&policy_metrics),
        };
        let admission = admission::plugins(
            store,
            &authorizers,
            &policy,
            &config.admission,
            admission::plurals(&definitions),
            &caller,
            &policies,
        );
        let options = &config.options;
        let admission =
            admission::switched(admission, &options.disabled_admission_plugins, options.privileged_containers);
        let components = Components {
            object_meta: types::schema("meta/v1.ObjectMeta"),
            delete_options: types::built_in("meta.k8s.io/v1", "DeleteOptions"),
            scale: types::built_in("autoscaling/v1", "Scale"),
            admission,
            definitions,
            priority_of: priorities::priority_of,
            authorizers,
            token_authenticators,
            audit: config.audit.clone(),
            documents,
        };
        let api = Api::new(store.clone(), components);
        let aggregator = Aggregator::load(&api, &clients);
        let counted = Arc::clone(&token_uses);
        api.metrics().register(move |page| counted.write(page));
        api.metrics().register(move |page| metrics.write(page));
        let converted = conversion_webhooks.clone();
        api.metrics().register(move |page| converted.write(page));
        api.metrics().register(move |page| policy_metrics.write(page));
        Self {
            api,
            usage,
            token_uses,
            conversion_webhooks,
            extension_clients: clients,
            aggregator,
            #[cfg(test)]
            allocator,
        }
    }
}

/// By what others verify tokens of service accounts.
fn documents(tokens: &TokenIssuer) -> Vec<Document> {
    let document =
        |path, content_type, body: serde_json::Value| Document { path, content_type, body: body.to_string().into() };
    vec![
        document(CONFIGURATION_PATH, "application/json", tokens.openid_configuration()),
        document(KEY_SET_PATH, "application/jwk-set+json", tokens.key_set()),
    ]
}

/// Tests call it like the API server itself.
#[cfg(test)]
impl std::ops::Deref for Instance {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}
