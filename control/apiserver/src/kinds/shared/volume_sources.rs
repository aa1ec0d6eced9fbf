//! Sources of volumes that pods and persistent volumes share. Pure.

use super::{field::Field, pod_template::validate_no_back_steps};
use crate::apiserver::pipeline::validation::{errors::Errors, names};

const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
const REGISTRY: &str = "must be a host:port pair or multiple pairs separated by commas";
const MANAGED: &str = "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
const MAX_DRIVER_BYTES: usize = 63;

/// Validates a path of the host, which is not empty.
pub(crate) fn host_path(source: &Field<'_>, errors: &mut Errors) {
    let path = source.at("path");
    validate_no_back_steps(&path.path, path.text(), errors);
    if !path.is_empty() {
        source.at("type").optional_one_of(&HOST_PATH_TYPES, errors);
    }
}

/// Refuses an invalid name of a CSI driver.
pub(crate) fn csi_driver(driver: &Field<'_>, errors: &mut Errors) {
    if driver.text().len() > MAX_DRIVER_BYTES {
        driver.max_bytes(MAX_DRIVER_BYTES, errors);
    } else if let Some(why) = names::subdomain(&driver.text().to_lowercase()).filter(|_| !driver.is_empty()) {
        errors.invalid_text(&driver.path, driver.text(), &why);
    }
}

/// Whether it names an initiator or target as iSCSI does.
pub(crate) fn is_iscsi_name(name: &str) -> bool {
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

/// Refuses a number beyond a byte.
pub(crate) fn within(number: &Field<'_>, least: i64, errors: &mut Errors) {
    if number.number().is_some_and(|n| !(least.min(0)..=255).contains(&n)) {
        number.invalid(&format!("must be between {least} and 255, inclusive"), errors);
    }
}

/// Validates a disk of Fibre Channel.
pub(crate) fn fibre_channel(source: &Field<'_>, errors: &mut Errors) {
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

/// Validates a disk of Azure.
pub(crate) fn azure_disk(source: &Field<'_>, errors: &mut Errors) {
    source.at("cachingMode").optional_one_of(&["None", "ReadOnly", "ReadWrite"], errors);
    source.at("kind").optional_one_of(&["Dedicated", "Managed", "Shared"], errors);
    let (uri, managed) = (source.at("diskURI"), source.at("kind").text() == "Managed");
    let (prefix, form) = if managed { ("/subscriptions/", MANAGED) } else { ("https://", BLOB) };
    if source.at("kind").is_set() && !uri.text().starts_with(prefix) {
        errors.not_supported(&uri.path, uri.value, &[form]);
    }
}

/// Validates a dataset of Flocker.
pub(crate) fn flocker(source: &Field<'_>, errors: &mut Errors) {
    let (name, id) = (source.at("datasetName"), source.at("datasetUUID"));
    if name.is_empty() && id.is_empty() {
        source.required("one of datasetName and datasetUUID is required", errors);
    } else if !name.is_empty() && !id.is_empty() {
        // The value is upstream's word.
        source.invalid_as("\"resource\"", "datasetName and datasetUUID can not be specified simultaneously", errors);
    }
    if name.text().contains('/') {
        name.invalid("must not contain '/'", errors);
    }
}

/// Validates the options of a FlexVolume.
pub(crate) fn flex_volume(source: &Field<'_>, errors: &mut Errors) {
    for (key, option) in source.at("options").entries() {
        let domain = format!(".{}", key.split('/').next().unwrap_or_default().to_lowercase());
        if domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io") {
            errors.invalid_text(option.path, key, "kubernetes.io and k8s.io namespaces are reserved");
        }
    }
}

/// Validates a volume of Quobyte.
pub(crate) fn quobyte(source: &Field<'_>, errors: &mut Errors) {
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
