//! Protection of VolumeAttributesClasses: one that is being deleted goes when no volume and no claim names it any more, as the API says
//! (upstream: `vacprotection`).

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttributesClass,
};
use kube::{Api, Client, Resource as _};

use super::{
    finalizers,
    runtime::{Cache, Context, Controller, During as _, Error, Index, Key, Live, Outcome, Step},
};

impl crate::runtime::Cached for VolumeAttributesClass {}

const FINALIZER: &str = "kubernetes.io/vac-protection";

/// Claims by the classes that they have, get or ask for.
const CLAIMS_BY_CLASS: Index<PersistentVolumeClaim> = Index::new("attributes class", classes_of_claim);
/// Volumes by their class.
const VOLUMES_BY_CLASS: Index<PersistentVolume> = Index::new("attributes class", classes_of_volume);

pub(crate) struct VolumeAttributesClassController {
    client: Client,
    classes: Cache<VolumeAttributesClass>,
    claims: Cache<PersistentVolumeClaim>,
    volumes: Cache<PersistentVolume>,
}

impl Controller for VolumeAttributesClassController {
    const NAME: &'static str = "volumeattributesclass-protection-controller";
    const QUEUE: &'static str = "vacprotection";
    type Key = Key;
    type Config = ();

    fn subscribe(context: &mut Context<Key>, (): ()) -> Self {
        let classes = context.informer::<VolumeAttributesClass>();
        let (claims, volumes) = (context.informer::<PersistentVolumeClaim>(), context.informer::<PersistentVolume>());
        claims.index(&CLAIMS_BY_CLASS);
        volumes.index(&VOLUMES_BY_CLASS);
        let queue = context.queue();
        classes.on_change(move |_, new| {
            if let Some(class) = new {
                queue.add(Key::of(class.meta()));
            }
        });
        let queue = context.queue();
        claims.on_change(move |old, _| {
            old.iter().flat_map(|claim| classes_of_claim(claim)).for_each(|name| queue.add(Key::new("", name)));
        });
        let queue = context.queue();
        volumes.on_change(move |old, _| {
            old.iter().flat_map(|volume| classes_of_volume(volume)).for_each(|name| queue.add(Key::new("", name)));
        });
        Self { client: context.client(), classes: classes.cache(), claims: claims.cache(), volumes: volumes.cache() }
    }

    async fn reconcile(&self, key: Key) -> Result<Outcome, Error> {
        let Some(class) = self.classes.get(&key) else { return Ok(Outcome::Done) };
        let api: Api<VolumeAttributesClass> = Api::all(self.client.clone());
        if class.metadata.deletion_timestamp.is_none() {
            finalizers::hold(&api, &*class, FINALIZER).await?;
            return Ok(Outcome::Done);
        }
        if self.claims.count(&CLAIMS_BY_CLASS, &key.name) > 0 {
            return Ok(Step::waits_for(&self.claims).into());
        }
        if self.volumes.count(&VOLUMES_BY_CLASS, &key.name) > 0 {
            return Ok(Step::waits_for(&self.volumes).into());
        }
        let volumes = Live::list(&Api::<PersistentVolume>::all(self.client.clone())).await;
        let volumes = volumes.during("look for volumes of", &key)?;
        let claims = Live::list(&Api::<PersistentVolumeClaim>::all(self.client.clone())).await;
        let claims = claims.during("look for claims of", &key)?;
        let is_used = |names: Vec<String>| names.contains(&key.name);
        if volumes.answer().iter().any(|volume| is_used(classes_of_volume(volume))) {
            return Ok(Step::waits_for(&self.volumes).into());
        }
        match claims.shows(|claims| !claims.iter().any(|claim| is_used(classes_of_claim(claim)))) {
            Some(unused) => finalizers::let_go(&api, &*class, FINALIZER, unused).await?,
            None => return Ok(Step::waits_for(&self.claims).into()),
        }
        Ok(Outcome::Done)
    }
}

fn classes_of_claim(claim: &PersistentVolumeClaim) -> Vec<String> {
    let (spec, status) = (claim.spec.as_ref(), claim.status.as_ref());
    let names = [
        spec.and_then(|spec| spec.volume_attributes_class_name.clone()),
        status.and_then(|status| status.current_volume_attributes_class_name.clone()),
        status.and_then(|status| status.modify_volume_status.as_ref()?.target_volume_attributes_class_name.clone()),
    ];
    let mut names: Vec<String> = names.into_iter().flatten().filter(|name| !name.is_empty()).collect();
    names.sort();
    names.dedup();
    names
}

fn classes_of_volume(volume: &PersistentVolume) -> Vec<String> {
    let class = volume.spec.as_ref().and_then(|spec| spec.volume_attributes_class_name.clone());
    class.filter(|name| !name.is_empty()).into_iter().collect()
}
