//! Metadata without what this process never reads: managed fields, and all but a few annotations. Decoding them takes
//! longer than decoding the rest of a pod.

use std::{collections::BTreeMap, fmt, marker::PhantomData};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

/// The annotations that are kept.
pub trait Annotations {
    /// Their names.
    const KEPT: &'static [&'static str];
}

/// No annotation is kept.
#[derive(Debug, Clone, Copy)]
pub struct NoAnnotations;

impl Annotations for NoAnnotations {
    const KEPT: &'static [&'static str] = &[];
}

/// Decodes metadata, for `#[serde(deserialize_with)]`.
///
/// # Errors
/// When it is not metadata.
pub fn metadata<'de, A: Annotations, D: Deserializer<'de>>(deserializer: D) -> Result<ObjectMeta, D::Error> {
    let metadata = Kept::<A>::deserialize(deserializer)?;
    Ok(ObjectMeta {
        name: metadata.name,
        generate_name: metadata.generate_name,
        namespace: metadata.namespace,
        uid: metadata.uid,
        resource_version: metadata.resource_version,
        generation: metadata.generation,
        creation_timestamp: metadata.creation_timestamp,
        deletion_timestamp: metadata.deletion_timestamp,
        deletion_grace_period_seconds: metadata.deletion_grace_period_seconds,
        labels: metadata.labels,
        annotations: metadata.annotations,
        owner_references: metadata.owner_references,
        finalizers: metadata.finalizers,
        ..ObjectMeta::default()
    })
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound = "A: Annotations")]
struct Kept<A> {
    name: Option<String>,
    generate_name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    generation: Option<i64>,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
    deletion_grace_period_seconds: Option<i64>,
    labels: Option<BTreeMap<String, String>>,
    #[serde(default, deserialize_with = "annotations::<A, _>")]
    annotations: Option<BTreeMap<String, String>>,
    owner_references: Option<Vec<OwnerReference>>,
    finalizers: Option<Vec<String>>,
    #[serde(skip)]
    of: PhantomData<A>,
}

/// The others are not copied.
fn annotations<'de, A: Annotations, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<BTreeMap<String, String>>, D::Error> {
    struct Read<A>(PhantomData<A>);
    impl<'de, A: Annotations> Visitor<'de> for Read<A> {
        type Value = Option<BTreeMap<String, String>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("annotations")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
            let mut kept = BTreeMap::new();
            while let Some(name) = map.next_key::<String>()? {
                if A::KEPT.contains(&name.as_str()) {
                    kept.insert(name, map.next_value()?);
                } else {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            Ok((!kept.is_empty()).then_some(kept))
        }
    }
    deserializer.deserialize_any(Read::<A>(PhantomData))
}

/// Makes a type with the field `metadata` the form in which objects of another type are decoded.
#[macro_export]
macro_rules! decoded_form {
    ($form:ty, $of:ty) => {
        impl kube::Resource for $form {
            type DynamicType = ();
            type Scope = <$of as kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$of as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$of as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$of as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$of as kube::Resource>::plural(&())
            }

            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}
