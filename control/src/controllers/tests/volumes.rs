//! Claims and volumes together.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Bed, put};
use crate::controllers::Config;

#[tokio::test]
async fn a_bound_claim_is_lost_with_its_volume_and_bound_again_when_that_is_back() {
    let bed = Bed::new(Config::default()).await;
    let volumes: Api<PersistentVolume> = Api::all(bed.client.clone());
    let volume = json!({"metadata": {"name": "v"}, "spec": {"capacity": {"storage": "1Gi"}}});
    put(&volumes, volume.clone()).await;
    put(&bed.api::<PersistentVolumeClaim>(), json!({"metadata": {"name": "c"}, "spec": {}})).await;
    let claim_is = |phase: &'static str| move |c: &[Value]| c[0]["status"]["phase"] == phase;
    let bound = |v: &[Value]| v.first().is_some_and(|v| v["status"]["phase"] == "Bound");
    bed.fake.until("persistentvolumeclaims", "bound", claim_is("Bound")).await;
    bed.fake.until("persistentvolumes", "bound", bound).await;

    // A volume that is being deleted is there as long as it is protected.
    volumes.delete("v", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(claim_is("Bound")(&bed.fake.all("persistentvolumeclaims")));
    let unprotected = Patch::Merge(json!({"metadata": {"finalizers": []}}));
    volumes.patch("v", &PatchParams::default(), &unprotected).await.unwrap();
    bed.fake.until("persistentvolumeclaims", "lost", claim_is("Lost")).await;
    bed.fake.until("events", "the loss", |e| e.iter().any(|e| e["reason"] == "ClaimLost")).await;
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert!(claim_is("Lost")(&bed.fake.all("persistentvolumeclaims")), "and stays so");

    put(&volumes, volume).await;
    bed.fake.until("persistentvolumeclaims", "bound again", claim_is("Bound")).await;
    bed.fake.until("persistentvolumes", "bound again", bound).await;
    bed.end().await;
}

#[tokio::test]
async fn a_class_of_attributes_stays_while_a_claim_names_it() {
    let bed = Bed::new(Config::default()).await;
    let classes: Api<VolumeAttributesClass> = Api::all(bed.client.clone());
    let class =
        json!({"metadata": {"name": "fast", "finalizers": ["kubernetes.io/vac-protection"]}, "driverName": "d"});
    put(&classes, class).await;
    let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeAttributesClassName": "fast"}});
    put(&bed.api::<PersistentVolumeClaim>(), claim).await;
    bed.fake.until("persistentvolumeclaims", "seen", |c| c[0]["status"]["phase"] == "Pending").await;
    classes.delete("fast", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    assert_eq!(bed.fake.all("volumeattributesclasses").len(), 1);
    let other = Patch::Merge(json!({"spec": {"volumeAttributesClassName": "other"}}));
    bed.api::<PersistentVolumeClaim>().patch("c", &PatchParams::default(), &other).await.unwrap();
    bed.fake.until("volumeattributesclasses", "gone", <[Value]>::is_empty).await;
    bed.end().await;
}
