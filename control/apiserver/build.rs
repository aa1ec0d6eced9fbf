//! Writes the descriptions of all fields of built-in types, which `kubectl explain` shows, to one compressed file: they come
//! from the schemas of k8s-openapi, whose generated code thereby stays out of the program.
//!
//! The file is deflate-compressed text: a line `TYPE<tab>DESCRIPTION` for each type (`core/v1.Pod`), followed by a line
//! `<tab>FIELD<tab>DESCRIPTION` for each of its fields that has one. Line breaks and backslashes are escaped.

use std::{collections::BTreeMap, env, fmt::Write as _, fs, io::Write as _, path::PathBuf};

use k8s_openapi::{
    api::{
        admissionregistration::v1 as admissionregistration, apps::v1 as apps, authentication::v1 as authentication,
        authorization::v1 as authorization, autoscaling::v1 as autoscaling_v1, autoscaling::v2 as autoscaling_v2,
        batch::v1 as batch, certificates::v1 as certificates, coordination::v1 as coordination, core::v1 as core,
        discovery::v1 as discovery, events::v1 as events, flowcontrol::v1 as flowcontrol, networking::v1 as networking,
        node::v1 as node, policy::v1 as policy, rbac::v1 as rbac, resource::v1 as resource,
        scheduling::v1 as scheduling, storage::v1 as storage,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1 as apiextensions,
    apimachinery::pkg::apis::meta::v1 as meta,
    kube_aggregator::pkg::apis::apiregistration::v1 as apiregistration,
};
use schemars::{SchemaGenerator, generate::SchemaSettings};

/// Refers to the schema of each type, and so to those of all types of its fields.
macro_rules! add_types {
    ($generator:ident: $($module:ident { $($kind:ident),* $(,)? })*) => {
        $($(let _ = $generator.subschema_for::<$module::$kind>();)*)*
    };
}

fn add_built_in_types(generator: &mut SchemaGenerator) {
    add_types! { generator:
        admissionregistration {
            MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding, MutatingWebhookConfiguration,
            ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding, ValidatingWebhookConfiguration,
        }
        apiextensions { CustomResourceDefinition }
        apiregistration { APIService }
        apps { ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet }
        authentication { SelfSubjectReview, TokenRequest, TokenReview }
        authorization {
            LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
        }
        autoscaling_v1 { HorizontalPodAutoscaler, Scale }
        autoscaling_v2 { HorizontalPodAutoscaler }
        batch { CronJob, Job }
        certificates { CertificateSigningRequest }
        coordination { Lease }
        core {
            Binding, ComponentStatus, ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume,
            PersistentVolumeClaim, Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, Service,
            ServiceAccount,
        }
        discovery { EndpointSlice }
        events { Event }
        flowcontrol { FlowSchema, PriorityLevelConfiguration }
        meta { APIGroup, APIGroupList, APIResourceList, APIVersions, DeleteOptions, Status }
        networking { Ingress, IngressClass, IPAddress, NetworkPolicy, ServiceCIDR }
        node { RuntimeClass }
        policy { Eviction, PodDisruptionBudget }
        rbac { ClusterRole, ClusterRoleBinding, Role, RoleBinding }
        resource { DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice }
        scheduling { PriorityClass }
        storage {
            CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass,
        }
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let mut generator = SchemaSettings::openapi3().into_generator();
    add_built_in_types(&mut generator);
    let mut types = BTreeMap::new();
    for (definition, schema) in generator.take_definitions(true) {
        types.insert(go_type(&definition), schema);
    }
    let mut text = LIST.to_owned();
    for (name, schema) in &types {
        let description = schema["description"].as_str().unwrap_or_default();
        let _ = writeln!(text, "{name}\t{}", escaped(description));
        let fields = schema["properties"].as_object();
        for (field, schema) in fields.into_iter().flatten() {
            if let Some(description) = schema["description"].as_str() {
                let _ = writeln!(text, "\t{field}\t{}", escaped(description));
            }
        }
    }
    let file = PathBuf::from(env::var_os("OUT_DIR").expect("cargo names a directory")).join("descriptions.deflate");
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_bytes()).expect("memory takes what is written");
    fs::write(file, encoder.finish().expect("memory takes what is written")).expect("the directory can be written");
}

/// All lists are alike, and k8s-openapi has no schema of them.
const LIST: &str = "core/v1.PodList\t\n\tapiVersion\tThe group and version of the list.\n\titems\tThe objects.\n\tkind\tThe kind of the list.\n\tmetadata\tThe list's resource version, and where its next page begins.\n";

/// `io.k8s.api.core.v1.Pod` → `core/v1.Pod`: the last three parts of a definition's name.
fn go_type(definition: &str) -> String {
    let mut parts = definition.rsplitn(4, '.');
    let (name, version, group) = (parts.next(), parts.next(), parts.next());
    match (group, version, name) {
        (Some("api"), Some("resource"), Some(name)) => format!("api/resource.{name}"),
        (Some(group), Some(version), Some(name)) if version.starts_with('v') => format!("{group}/{version}.{name}"),
        (Some("util"), Some("intstr"), Some(name)) => format!("util/intstr.{name}"),
        (_, Some(package), Some(name)) => format!("{package}.{name}"),
        _ => definition.to_owned(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', " ")
}
