//! Properties of what reads registries' credentials, for fuzzers.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use windlass_kit::objects::image::Reference;

use super::{
    credentials::{Source, config_of_secret, for_image},
    plugins,
};

/// Whatever a pull secret holds, the credentials that are found in it belong to the image's registry, and are printed nowhere.
///
/// # Panics
/// When that does not hold.
pub fn pull_secret(bytes: &[u8]) {
    let image = Reference::parse("registry.example.com:5000/team/app:1").expect("the name of an image");
    for (kind, key) in
        [("kubernetes.io/dockerconfigjson", ".dockerconfigjson"), ("kubernetes.io/dockercfg", ".dockercfg")]
    {
        let data = BTreeMap::from([(key.to_owned(), ByteString(bytes.to_vec()))]);
        let secret = Secret { type_: Some(kind.to_owned()), data: Some(data), ..Secret::default() };
        let Some(config) = config_of_secret(&secret) else { continue };
        let all = for_image(&image, &[(config, Source::of(&secret))]);
        for (at, one) in all.iter().enumerate() {
            assert!(!one.username.is_empty() || one.identity_token.is_some(), "credentials of nobody");
            assert!(!all[..at].contains(one), "the same credentials twice");
            let debugged = format!("{one:?}");
            assert!(one.password.len() < 8 || one.server.contains(&one.password) || !debugged.contains(&one.password));
        }
    }
}

/// Configurations of credential providers are read as a whole or refused, and so are the answers of their programs.
pub fn provider(bytes: &[u8]) {
    plugins::read_anything(bytes);
}
