//! The kinds of volumes that a PersistentVolume can be of, in the order of upstream's validation.

use serde_json::Value;

use crate::{
    apiserver::pipeline::validation::{errors::Errors, names},
    kinds::shared::{
        field::Field,
        pod_template::validate_no_back_steps,
        volume_sources::{
            azure_disk, csi_driver, fibre_channel, flex_volume, flocker, host_path, is_iscsi_name, quobyte, within,
        },
    },
};

/// A kind of volume.
struct Kind {
    /// Its field.
    field: &'static str,
    /// The field as errors name it.
    shown: &'static str,
    /// Whether it can be mounted with options.
    takes_options: bool,
    /// The fields that may not be empty.
    needs: &'static [&'static str],
}

const fn kind(field: &'static str, takes_options: bool, needs: &'static [&'static str]) -> Kind {
    Kind { field, shown: field, takes_options, needs }
}

const KINDS: [Kind; 22] = [
    kind("hostPath", false, &["path"]),
    Kind { field: "gcePersistentDisk", shown: "persistentDisk", takes_options: true, needs: &["pdName"] },
    kind("awsElasticBlockStore", true, &["volumeID"]),
    kind("glusterfs", true, &["endpoints", "path"]),
    kind("flocker", false, &[]),
    kind("nfs", true, &["server", "path"]),
    kind("rbd", true, &["monitors", "image"]),
    kind("quobyte", true, &[]),
    kind("cephfs", true, &["monitors"]),
    kind("iscsi", true, &["targetPortal"]),
    kind("cinder", true, &["volumeID"]),
    kind("fc", false, &[]),
    kind("flexVolume", false, &["driver"]),
    kind("azureFile", true, &["secretName", "shareName"]),
    kind("vsphereVolume", true, &["volumePath"]),
    kind("photonPersistentDisk", true, &["pdID"]),
    kind("portworxVolume", false, &["volumeID"]),
    kind("azureDisk", true, &["diskName", "diskURI"]),
    kind("scaleIO", false, &["gateway", "system", "volumeName"]),
    kind("local", false, &["path"]),
    kind("storageos", false, &["volumeName"]),
    kind("csi", false, &["driver", "volumeHandle"]),
];

const SECRETS: [&str; 4] =
    ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];

/// The sources that are set.
fn sources(spec: &Value) -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().filter(|kind| !spec[kind.field].is_null())
}

/// Whether a volume can be mounted with options.
pub(super) fn takes_options(spec: &Value) -> bool {
    sources(spec).any(|kind| kind.takes_options)
}

/// Validates the source of a volume of this name.
pub(super) fn validate(name: &str, spec: &Field<'_>, errors: &mut Errors) {
    let mut sources = sources(spec.value);
    let Some(first) = sources.next() else {
        return spec.required("must specify a volume type", errors);
    };
    let source = Field { value: &spec.value[first.field], path: spec.at(first.shown).path };
    for needed in first.needs.iter().map(|needed| source.at(needed)).filter(Field::is_empty) {
        needed.required("", errors);
    }
    match first.field {
        "hostPath" => host_path(&source, errors),
        "nfs" if !source.at("path").text().starts_with('/') => {
            errors.invalid_text(source.at("path").path, source.at("path").text(), "must be an absolute path");
        }
        "local" => {
            validate_no_back_steps(&source.at("path").path, source.at("path").text(), errors);
            if spec.below("nodeAffinity.required").value.is_null() {
                spec.at("nodeAffinity").required("Local volume requires node affinity", errors);
            }
        }
        "csi" => csi(&source, errors),
        "iscsi" => iscsi(name, &source, errors),
        "fc" => fibre_channel(&source, errors),
        "azureDisk" => azure_disk(&source, errors),
        other => rare(other, &source, errors),
    }
    for second in sources {
        // Upstream's word for this one.
        let shown = if second.field == "cephfs" { "cephFS" } else { second.field };
        spec.at(shown).forbidden("may not specify more than 1 volume type", errors);
    }
}

fn csi(source: &Field<'_>, errors: &mut Errors) {
    csi_driver(&source.at("driver"), errors);
    for secret in SECRETS.map(|secret| source.at(secret)).iter().filter(|secret| secret.is_set()) {
        secret.at("name").named(names::subdomain, errors);
        secret.at("namespace").named(names::label, errors);
    }
}

fn iscsi(name: &str, source: &Field<'_>, errors: &mut Errors) {
    let (portal, iqn, initiator) = (source.at("targetPortal"), source.at("iqn"), source.at("initiatorName"));
    if initiator.is_set() && name.len() + 1 + portal.text().len() > 64 {
        let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.invalid_text(source.at("targetportal").path, portal.text(), why);
    }
    if iqn.is_empty() {
        iqn.required("", errors);
    } else if !is_iscsi_name(iqn.text()) {
        iqn.invalid("must be valid format", errors);
    }
    within(&source.at("lun"), 0, errors);
    let secret = source.at("secretRef");
    let asks = ["chapAuthDiscovery", "chapAuthSession"].iter().any(|way| source.value[*way] == true);
    if asks && !secret.is_set() {
        secret.required("", errors);
    }
    if secret.is_set() && secret.at("name").is_empty() {
        secret.at("name").required("", errors);
    }
    if initiator.is_set() && !is_iscsi_name(initiator.text()) {
        errors.invalid_text(source.at("initiatorname").path, initiator.text(), "must be valid format");
    }
}

/// A secret in a namespace.
fn secret_reference(secret: &Field<'_>, errors: &mut Errors) {
    for needed in ["name", "namespace"].map(|needed| secret.at(needed)) {
        if secret.is_set() && needed.is_empty() {
            needed.required("", errors);
        }
    }
}

/// Kinds that few have.
fn rare(kind: &str, source: &Field<'_>, errors: &mut Errors) {
    match kind {
        "gcePersistentDisk" | "awsElasticBlockStore" => within(&source.at("partition"), 1, errors),
        "glusterfs" => {
            let namespace = source.at("endpointsNamespace");
            if namespace.is_set() && namespace.is_empty() {
                namespace.invalid("if the endpointnamespace is set, it must be a valid namespace name", errors);
            }
            namespace.optionally_fits(names::label, errors);
        }
        "flocker" => flocker(source, errors),
        "quobyte" => quobyte(source, errors),
        "cinder" => secret_reference(&source.at("secretRef"), errors),
        "flexVolume" => flex_volume(source, errors),
        "azureFile" if source.at("secretNamespace").value == "" => source.at("secretNamespace").required("", errors),
        "storageos" => {
            for name in ["volumeName", "volumeNamespace"] {
                source.at(name).optionally_fits(names::label, errors);
            }
            secret_reference(&source.at("secretRef"), errors);
        }
        _ => {}
    }
}
