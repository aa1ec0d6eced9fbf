//! The descriptions of built-in types and their fields, which `kubectl explain` shows.

use std::io::Read as _;

/// Made by `build.rs`.
static COMPRESSED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptions.deflate"));

/// The text that [`Descriptions`](windlass_apimachinery::openapi::Descriptions) reads: about a megabyte, made again at each
/// call, because it is seldom needed.
#[must_use]
pub fn text() -> String {
    let mut text = String::new();
    if let Err(error) = flate2::read::DeflateDecoder::new(COMPRESSED).read_to_string(&mut text) {
        tracing::error!(%error, "failed to read descriptions of types; documents have none");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use windlass_apimachinery::openapi::Descriptions;

    use super::text;
    use crate::kinds::types::TYPES;

    #[test]
    fn types_and_fields_are_described() {
        let text = text();
        let descriptions = Descriptions::new(&text);
        assert!(descriptions.of_type("core/v1.Pod").is_some_and(|text| text.starts_with("Pod is a collection")));
        for (of, field) in [
            ("core/v1.Pod", "metadata"),
            ("core/v1.Pod", "kind"),
            ("core/v1.PodSpec", "containers"),
            ("meta/v1.ObjectMeta", "labels"),
            ("core/v1.ConfigMapVolumeSource", "name"),
            ("core/v1.PodList", "items"),
            ("apps/v1.DeploymentList", "items"),
            ("apiextensions/v1.CustomResourceDefinitionSpec", "group"),
            ("resource/v1.ResourceSliceSpec", "pool"),
        ] {
            assert!(descriptions.of_field(of, field).is_some(), "{of}.{field}");
        }
        for name in ["api/resource.Quantity", "util/intstr.IntOrString", "meta/v1.Time", "runtime.RawExtension"] {
            assert!(descriptions.of_type(name).is_some(), "{name}");
        }
        // Those that upstream publishes no schema of are without: options in queries, types of protobuf alone, and a
        // version that it does not serve any more.
        let published = |name: &&str| !name.ends_with("List") && !name.starts_with("autoscaling/v2beta1.");
        let without = TYPES.names().filter(published).filter(|name| descriptions.of_type(name).is_none());
        let without: Vec<&str> = without.collect();
        assert!(without.len() < 40, "{} {without:?}", without.len());
    }

    /// Fields of which upstream describes nothing, so that this test does not see them in the schemas.
    const UNDESCRIBED: [&str; 3] = [
        "apiextensions/v1.JSONSchemaProps.",
        "certificates/v1.CertificateSigningRequest.metadata",
        "networking/v1.IngressRule.http",
    ];

    /// The crate's schemas come from upstream's OpenAPI document, the tables from its Go types.
    #[test]
    fn the_tables_have_the_fields_of_the_crates_schemas() {
        let text = text();
        let mut described: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut of = "";
        for line in text.lines() {
            match line.strip_prefix('\t') {
                Some(field) => {
                    described.entry(of).or_default().insert(field.split('\t').next().unwrap_or_default());
                }
                None => of = line.split('\t').next().unwrap_or_default(),
            }
        }
        let (mut compared, mut differ) = (0, Vec::new());
        for (name, theirs) in &described {
            let Ok(of) = TYPES.named(name) else { continue };
            let Some(object) = of.definition().as_object() else { continue };
            let ours: BTreeSet<&str> = object.properties.iter().map(|(field, _)| &**field).collect();
            compared += 1;
            let fields = ours.symmetric_difference(theirs).map(|field| format!("{name}.{field}"));
            differ.extend(fields.filter(|field| {
                let of_ours = ours.contains(field.rsplit('.').next().unwrap_or_default());
                !(of_ours && UNDESCRIBED.iter().any(|start| field.starts_with(start)))
            }));
        }
        assert!(compared > 500, "only {compared} types were compared");
        assert_eq!(differ, Vec::<String>::new());
    }
}
