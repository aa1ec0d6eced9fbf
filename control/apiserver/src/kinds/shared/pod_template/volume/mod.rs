//! A pod's volumes. Pure.

mod files;
mod projected;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::{
        field::Field,
        template_metadata, volume_claims,
        volume_sources::{
            azure_disk, csi_driver, fibre_channel, flex_volume, flocker, host_path, is_iscsi_name, quobyte, within,
        },
    },
};
pub(super) use projected::validate_token_paths;

use super::{
    container::pull_policy,
    leniency::{Broken, Leniency},
};

/// A kind of volume.
struct Kind {
    field: &'static str,
    /// Its field in errors about what it has.
    shown: &'static str,
    /// Its field where it is a second kind.
    second: &'static str,
    /// The fields that may not be empty.
    needs: &'static [&'static str],
}

const fn kind(field: &'static str, needs: &'static [&'static str]) -> Kind {
    Kind { field, shown: field, second: field, needs }
}

/// All kinds, in the order of upstream's validation, and with its slips in paths.
const KINDS: [Kind; 30] = [
    kind("emptyDir", &[]),
    kind("hostPath", &["path"]),
    kind("gitRepo", &["repository"]),
    Kind { field: "gcePersistentDisk", shown: "persistentDisk", second: "gcePersistentDisk", needs: &["pdName"] },
    kind("awsElasticBlockStore", &["volumeID"]),
    kind("secret", &["secretName"]),
    kind("nfs", &["server", "path"]),
    kind("iscsi", &["targetPortal"]),
    kind("glusterfs", &["endpoints", "path"]),
    kind("flocker", &[]),
    kind("persistentVolumeClaim", &["claimName"]),
    kind("rbd", &["monitors", "image"]),
    kind("cinder", &["volumeID"]),
    Kind { field: "cephfs", shown: "cephfs", second: "cephFS", needs: &["monitors"] },
    kind("quobyte", &[]),
    Kind { field: "downwardAPI", shown: "downwardAPI", second: "downwarAPI", needs: &[] },
    kind("fc", &[]),
    kind("flexVolume", &["driver"]),
    kind("configMap", &["name"]),
    kind("azureFile", &["secretName", "shareName"]),
    kind("vsphereVolume", &["volumePath"]),
    kind("photonPersistentDisk", &["pdID"]),
    kind("portworxVolume", &["volumeID"]),
    kind("azureDisk", &["diskName", "diskURI"]),
    kind("storageos", &["volumeName"]),
    kind("projected", &[]),
    kind("scaleIO", &["gateway", "system", "volumeName"]),
    kind("csi", &["driver"]),
    kind("ephemeral", &[]),
    kind("image", &[]),
];

/// Checks the volumes of a pod; those that mounts may refer to, by name. `pod_name` is empty in templates.
pub(super) fn all<'a>(
    volumes: &Field<'a>,
    pod_name: &str,
    template: bool,
    leniency: Leniency<'_>,
    errors: &mut Errors,
) -> BTreeMap<&'a str, &'a Value> {
    let mut valid = BTreeMap::new();
    let made = |volume: &Field<'_>| volume.at("ephemeral").is_set() && !pod_name.is_empty();
    let claims: BTreeSet<String> =
        volumes.items().filter(made).map(|volume| format!("{pod_name}-{}", volume.at("name").text())).collect();
    for volume in volumes.items() {
        let name = volume.at("name");
        let before = errors.0.len();
        source(&volume, pod_name, template, leniency, errors);
        name.named(names::label, errors);
        if valid.contains_key(name.text()) {
            name.duplicate(errors);
        }
        if errors.0.len() == before {
            valid.insert(name.text(), volume.value);
        }
        let claim = volume.below("persistentVolumeClaim.claimName");
        if claims.contains(claim.text()) {
            claim.invalid("must not reference a PVC that gets created for an ephemeral volume", errors);
        }
    }
    valid
}

fn source(volume: &Field<'_>, pod_name: &str, template: bool, leniency: Leniency<'_>, errors: &mut Errors) {
    let mut kinds = KINDS.iter().filter(|kind| volume.at(kind.field).is_set());
    let Some(first) = kinds.next() else {
        return volume.required("must specify a volume type", errors);
    };
    let source = Field { value: &volume.value[first.field], path: volume.at(first.shown).path };
    for needed in first.needs.iter().map(|needed| source.at(needed)).filter(Field::is_empty) {
        needed.required("", errors);
    }
    match first.field {
        "emptyDir" if source.at("sizeLimit").quantity().is_some_and(|size| size.is_negative()) => {
            source.at("sizeLimit").forbidden("SizeLimit field must be a valid resource quantity", errors);
        }
        "secret" | "configMap" => files::validate(&source, errors),
        "downwardAPI" => files::validate_downward(&source, errors),
        "projected" => projected::validate(&source, !leniency.allows(Broken::TokenPaths), errors),
        "iscsi" => iscsi(volume, &source, errors),
        "csi" => {
            csi_driver(&source.at("driver"), errors);
            let secret = source.at("nodePublishSecretRef");
            if secret.is_set() && secret.at("name").is_empty() {
                secret.at("name").required("", errors);
            } else if secret.is_set() {
                // The path is upstream's.
                let name = secret.at("name").text();
                errors.unless(source.at("name").path, name, names::subdomain(name));
            }
        }
        "ephemeral" => ephemeral(volume, &source, pod_name, errors),
        "image" => {
            if !template && source.at("reference").is_empty() {
                source.at("reference").required("", errors);
            }
            pull_policy(&source.at("pullPolicy"), errors);
        }
        other => without_files(other, &source, errors),
    }
    for second in kinds {
        volume.at(second.second).forbidden("may not specify more than 1 volume type", errors);
    }
}

/// Kinds whose contents come from elsewhere.
fn without_files(kind: &str, source: &Field<'_>, errors: &mut Errors) {
    match kind {
        "hostPath" => host_path(source, errors),
        "gitRepo" => {
            let directory = source.at("directory");
            validate_local_descending_path(&directory.path, directory.text(), errors);
        }
        "gcePersistentDisk" | "awsElasticBlockStore" => within(&source.at("partition"), 1, errors),
        "nfs" if !source.at("path").text().starts_with('/') => {
            errors.invalid_text(source.at("path").path, source.at("path").text(), "must be an absolute path");
        }
        "flocker" => flocker(source, errors),
        "cinder" => named_secret(source, errors),
        "quobyte" => quobyte(source, errors),
        "fc" => fibre_channel(source, errors),
        "flexVolume" => flex_volume(source, errors),
        "azureDisk" => azure_disk(source, errors),
        "storageos" => {
            for name in ["volumeName", "volumeNamespace"] {
                source.at(name).optionally_fits(names::label, errors);
            }
            named_secret(source, errors);
        }
        _ => {}
    }
}

/// Refuses a secret without a name.
fn named_secret(source: &Field<'_>, errors: &mut Errors) {
    let secret = source.at("secretRef");
    if secret.is_set() && secret.at("name").is_empty() {
        secret.at("name").required("", errors);
    }
}

fn iscsi(volume: &Field<'_>, source: &Field<'_>, errors: &mut Errors) {
    let (iqn, initiator) = (source.at("iqn"), source.at("initiatorName"));
    let begins = |name: &str| ["iqn", "eui", "naa"].iter().any(|form| name.starts_with(form));
    let problem = |name: &str| match begins(name) {
        false => Some("must be valid format starting with iqn, eui, or naa"),
        true => (!is_iscsi_name(name)).then_some("must be valid format"),
    };
    if iqn.is_empty() {
        iqn.required("", errors);
    } else if let Some(why) = problem(iqn.text()) {
        iqn.invalid(why, errors);
    }
    within(&source.at("lun"), 0, errors);
    let asks = ["chapAuthDiscovery", "chapAuthSession"].iter().any(|way| source.value[*way] == true);
    if asks && !source.at("secretRef").is_set() {
        source.at("secretRef").required("", errors);
    }
    if initiator.is_set() {
        if let Some(why) = problem(initiator.text()) {
            errors.invalid_text(source.at("initiatorname").path, initiator.text(), why);
        }
        let name = volume.at("name");
        if name.text().len() + 1 + source.at("targetPortal").text().len() > 64 {
            let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
            errors.invalid_text(&name.path, name.text(), why);
        }
    }
}

fn ephemeral(volume: &Field<'_>, source: &Field<'_>, pod_name: &str, errors: &mut Errors) {
    claim_template(&source.at("volumeClaimTemplate"), errors);
    let name = volume.at("name");
    if !pod_name.is_empty() && !name.is_empty() {
        let claim = format!("{pod_name}-{}", name.text());
        if let Some(why) = names::subdomain(&claim) {
            name.invalid(&format!("PVC name {claim:?}: {why}"), errors);
        }
    }
}

/// Validates the template of a claim that is made for a pod.
fn claim_template(template: &Field<'_>, errors: &mut Errors) {
    if !template.is_set() {
        return template.required("", errors);
    }
    template_metadata::validate(&template.at("metadata"), errors);
    volume_claims::validate_spec(&template.at("spec"), errors);
}

/// Refuses paths that begin at the root or leave their directory.
pub(super) fn validate_local_descending_path(field: impl Into<String> + Copy, path: &str, errors: &mut Errors) {
    if path.starts_with('/') {
        errors.invalid_text(field, path, "must be a relative path");
    }
    validate_no_back_steps(field, path, errors);
}

/// Refuses paths that the writer of volumes keeps for itself, too.
fn validate_local_path(field: impl Into<String> + Copy, path: &str, errors: &mut Errors) {
    validate_local_descending_path(field, path, errors);
    if path.starts_with("..") && !path.starts_with("../") {
        errors.invalid_text(field, path, "must not start with '..'");
    }
}

/// Refuses paths that leave their directory.
pub(crate) fn validate_no_back_steps(field: impl Into<String>, path: &str, errors: &mut Errors) {
    if path.split('/').any(|part| part == "..") {
        errors.invalid_text(field, path, "must not contain '..'");
    }
}
