//! The kinds of volumes that a PersistentVolume can be of, in the order of upstream's validation.

use serde_json::{Value, json};

use crate::{
    apiserver::validation::{errors::Errors, names},
    kinds::shared::{field::Field, pod_template::validate_no_back_steps},
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

const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const REGISTRY: &str = "must be a host:port pair or multiple pairs separated by commas";
const MANAGED: &str = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
const MAX_DRIVER_BYTES: usize = 63;
const SECRETS: [&str; 4] =
    ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"];

/// What the fields of some kinds are if they are not set.
pub(super) fn defaults() -> [(&'static str, &'static str, Value); 11] {
    [
        ("azureDisk", "cachingMode", json!("ReadWrite")),
        ("azureDisk", "fsType", json!("ext4")),
        ("azureDisk", "kind", json!("Shared")),
        ("azureDisk", "readOnly", json!(false)),
        ("hostPath", "type", json!("")),
        ("iscsi", "iscsiInterface", json!("default")),
        ("rbd", "keyring", json!("/etc/ceph/keyring")),
        ("rbd", "pool", json!("rbd")),
        ("rbd", "user", json!("admin")),
        ("scaleIO", "fsType", json!("xfs")),
        ("scaleIO", "storageMode", json!("ThinProvisioned")),
    ]
}

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
        spec.at(second.field).forbidden("may not specify more than 1 volume type", errors);
    }
}

fn host_path(source: &Field<'_>, errors: &mut Errors) {
    let path = source.at("path");
    validate_no_back_steps(&path.path, path.text(), errors);
    if !path.is_empty() {
        source.at("type").optional_one_of(&HOST_PATH_TYPES, errors);
    }
}

/// Refuses a name of a CSI driver that is none.
fn csi(source: &Field<'_>, errors: &mut Errors) {
    let driver = source.at("driver");
    if driver.text().len() > MAX_DRIVER_BYTES {
        driver.max_bytes(MAX_DRIVER_BYTES, errors);
    } else if let Some(why) = names::subdomain(&driver.text().to_lowercase()).filter(|_| !driver.is_empty()) {
        errors.invalid_text(driver.path.as_str(), driver.text(), &why);
    }
    for secret in SECRETS.map(|secret| source.at(secret)).iter().filter(|secret| secret.is_set()) {
        secret.at("name").named(names::subdomain, errors);
        secret.at("namespace").named(names::label, errors);
    }
}

/// Whether it names an initiator or target as iSCSI does.
fn is_iscsi_name(name: &str) -> bool {
    let digits = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
    let letters = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_alphanumeric());
    if let Some(rest) = name.strip_prefix("iqn.") {
        let Some((date, rest)) = rest.split_once('.') else { return false };
        let Some((authority, own)) = rest.split_once(':') else { return false };
        let fine = |c: char| !c.is_whitespace() && !",;*&$|".contains(c);
        return date.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2))
            && !authority.is_empty()
            && authority.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'.')
            && !own.is_empty()
            && own.chars().all(fine);
    }
    name.strip_prefix("eui.").is_some_and(|id| letters(id, 16))
        || name.strip_prefix("naa.").is_some_and(|id| letters(id, 32))
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

/// Refuses a number beyond a byte.
fn within(number: &Field<'_>, least: i64, errors: &mut Errors) {
    if number.number().is_some_and(|n| !(least.min(0)..=255).contains(&n)) {
        number.invalid(&format!("must be between {least} and 255, inclusive"), errors);
    }
}

fn fibre_channel(source: &Field<'_>, errors: &mut Errors) {
    let (names, ids, lun) = (source.at("targetWWNs"), source.at("wwids"), source.at("lun"));
    match (names.is_empty(), ids.is_empty()) {
        (true, true) => names.required("must specify either targetWWNs or wwids, but not both", errors),
        (false, false) => names.invalid("targetWWNs and wwids can not be specified simultaneously", errors),
        _ => {}
    }
    if !names.is_empty() {
        if lun.is_set() {
            within(&lun, 0, errors);
        } else {
            lun.required("lun is required if targetWWNs is specified", errors);
        }
    }
}

fn azure_disk(source: &Field<'_>, errors: &mut Errors) {
    source.at("cachingMode").optional_one_of(&["None", "ReadOnly", "ReadWrite"], errors);
    source.at("kind").optional_one_of(&["Dedicated", "Managed", "Shared"], errors);
    let (uri, managed) = (source.at("diskURI"), source.at("kind").text() == "Managed");
    let (prefix, form) = if managed { ("/subscriptions/", MANAGED) } else { ("https://", BLOB) };
    if source.at("kind").is_set() && !uri.text().starts_with(prefix) {
        errors.not_supported(uri.path.as_str(), uri.value, &[form]);
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
        "flocker" => {
            let (name, id) = (source.at("datasetName"), source.at("datasetUUID"));
            if name.is_empty() && id.is_empty() {
                source.required("one of datasetName and datasetUUID is required", errors);
            } else if !name.is_empty() && !id.is_empty() {
                // The value is upstream's word.
                source.invalid_as(
                    "\"resource\"",
                    "datasetName and datasetUUID can not be specified simultaneously",
                    errors,
                );
            }
            if name.text().contains('/') {
                name.invalid("must not contain '/'", errors);
            }
        }
        "quobyte" => quobyte(source, errors),
        "cinder" => secret_reference(&source.at("secretRef"), errors),
        "flexVolume" => {
            for (key, option) in source.at("options").entries() {
                let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
                if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
                    errors.invalid_text(option.path, key, "kubernetes.io and k8s.io namespaces are reserved");
                }
            }
        }
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

fn quobyte(source: &Field<'_>, errors: &mut Errors) {
    let (registry, tenant, volume) = (source.at("registry"), source.at("tenant"), source.at("volume"));
    if registry.is_empty() {
        registry.required(REGISTRY, errors);
    } else if tenant.text().len() >= 65 {
        tenant.required("must be a UUID and may not exceed a length of 64 characters", errors);
    } else {
        let is_pair =
            |pair: &str| pair.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && !port.is_empty());
        for _ in registry.text().split(',').filter(|pair| !is_pair(pair)) {
            registry.invalid(REGISTRY, errors);
        }
    }
    if volume.is_empty() {
        volume.required("", errors);
    }
}
