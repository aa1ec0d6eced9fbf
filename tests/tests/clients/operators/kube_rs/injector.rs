//! What cert-manager's injector does: writes the authority of the webhooks into what asks for it by an annotation.

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, PostParams},
};

use super::INJECT;

/// Writes it into all that ask for it now.
pub(super) async fn inject(client: &Client, authority: &str) -> anyhow::Result<()> {
    let (all, params) = (ListParams::default(), PostParams::default());
    let bundle = Some(ByteString(authority.as_bytes().to_vec()));
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    for mut one in mutating.list(&all).await?.items.into_iter().filter(|one| one.annotations().contains_key(INJECT)) {
        one.webhooks.iter_mut().flatten().for_each(|hook| hook.client_config.ca_bundle.clone_from(&bundle));
        mutating.replace(&one.name_any(), &params, &one).await?;
    }
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    for mut one in validating.list(&all).await?.items.into_iter().filter(|one| one.annotations().contains_key(INJECT)) {
        one.webhooks.iter_mut().flatten().for_each(|hook| hook.client_config.ca_bundle.clone_from(&bundle));
        validating.replace(&one.name_any(), &params, &one).await?;
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for mut one in definitions.list(&all).await?.items.into_iter().filter(|one| one.annotations().contains_key(INJECT))
    {
        let webhook = one.spec.conversion.as_mut().and_then(|conversion| conversion.webhook.as_mut());
        if let Some(config) = webhook.and_then(|webhook| webhook.client_config.as_mut()) {
            config.ca_bundle.clone_from(&bundle);
        }
        definitions.replace(&one.name_any(), &params, &one).await?;
    }
    Ok(())
}
