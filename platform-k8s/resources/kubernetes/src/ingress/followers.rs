//! HTTPRoutes behind leading ones: they follow from the leading one's annotation. Whoever writes that completes them, and
//! so does the server at its start, because a writer may have ended in between.

use std::collections::BTreeMap;

use drover_core::{Reason, Result};
use kube::{ResourceExt, core::DynamicObject};
use serde_json::json;

use super::{
    discovery::Kind,
    meta::{self, INGRESS},
    objects::{Objects, Scope},
    route::{self, BEHIND, Shows, Truth},
};

/// Makes the HTTPRoutes behind a leading one show what its annotation says, or a later one.
pub(super) async fn complete(objects: &Objects, leading: &DynamicObject) -> Result<()> {
    let resource = Kind::HttpRoute.resource();
    let namespace = leading.namespace().unwrap_or_default();
    let mut leading = leading.clone();
    loop {
        let Some(truth) = Truth::of(&leading)? else {
            return Ok(());
        };
        if truth.routes <= 1 {
            return Ok(());
        }
        let found = parts(objects, &leading).await?;
        let mut settled = true;
        for number in 1..truth.routes {
            settled &= one(objects, &leading, &truth, number, &found).await?;
        }
        // Somebody may have written a later truth, and completed it before this one was done.
        let Some(now) = objects
            .get(&resource, &namespace, &leading.name_any())
            .await?
        else {
            return Ok(());
        };
        let same = Truth::of(&now)?.is_some_and(|now| now.version == truth.version);
        if settled && same && now.uid() == leading.uid() {
            return Ok(());
        }
        leading = now;
    }
}

/// What the ingress has, by name.
async fn parts(
    objects: &Objects,
    leading: &DynamicObject,
) -> Result<BTreeMap<String, DynamicObject>> {
    let namespace = leading.namespace().unwrap_or_default();
    let ingress = meta::ingress_of(leading);
    let all = objects
        .with_followers(Kind::HttpRoute, &namespace, &ingress)
        .await?;
    Ok(all
        .into_iter()
        .map(|object| (object.name_any(), object))
        .collect())
}

/// Whether nobody else was writing it.
async fn one(
    objects: &Objects,
    leading: &DynamicObject,
    truth: &Truth,
    number: usize,
    found: &BTreeMap<String, DynamicObject>,
) -> Result<bool> {
    let follower = Follower {
        objects,
        leading,
        wanted: route::behind(leading, truth, number),
        truth,
        empty: truth.shown(number).is_empty(),
    };
    let wanted = &follower.wanted;
    let outcome = match (found.get(&wanted.name_any()), follower.empty) {
        (None, true) => return Ok(true),
        (None, false) => match objects.create_part(Kind::HttpRoute, wanted).await {
            Err(error) if error.reason() == Reason::AlreadyExists => {
                // Somebody has just made it, or has taken our label off it.
                let kind = Kind::HttpRoute.resource();
                let namespace = wanted.namespace().unwrap_or_default();
                match objects.get(&kind, &namespace, &wanted.name_any()).await? {
                    Some(found) => follower.correct(&found).await,
                    None => return Ok(false),
                }
            }
            other => other.map(|_| true),
        },
        (Some(found), _) => follower.correct(found).await,
    };
    match outcome {
        Ok(settled) => Ok(settled),
        Err(error) => match error.reason() {
            Reason::Conflict | Reason::AlreadyExists | Reason::NotFound => Ok(false),
            _ => Err(error),
        },
    }
}

/// An HTTPRoute behind a leading one, as it should be.
struct Follower<'a> {
    objects: &'a Objects,
    leading: &'a DynamicObject,
    truth: &'a Truth,
    wanted: DynamicObject,
    /// It has nothing to show, and is not needed.
    empty: bool,
}

impl Follower<'_> {
    /// Makes what is there what it should be, unless it follows from a later truth. Whether it did not.
    async fn correct(&self, found: &DynamicObject) -> Result<bool> {
        let shows = match route::shows(found, &self.wanted, self.truth) {
            Shows::Later(version) if self.has_written(version).await? => return Ok(false),
            // Anybody may have written the version.
            Shows::Later(_) | Shows::Otherwise => Shows::Otherwise,
            Shows::This => Shows::This,
        };
        let kind = Kind::HttpRoute.resource();
        if self.empty {
            self.objects.delete(&kind, found, true).await?;
            return Ok(true);
        }
        if shows == Shows::This {
            return Ok(true);
        }
        let wanted = &self.wanted;
        let mut spec = wanted.data["spec"].clone();
        if spec["hostnames"].is_null() {
            // Removed by the patch.
            spec["hostnames"] = json!(null);
        }
        let patch = json!({
            "metadata": {
                "resourceVersion": found.resource_version(),
                "labels": wanted.metadata.labels,
                "annotations": wanted.metadata.annotations,
                "ownerReferences": wanted.metadata.owner_references,
            },
            "spec": spec,
        });
        self.objects.patch(&kind, found, &patch).await?;
        Ok(true)
    }

    /// Whether the leading HTTPRoute has got to this version by now. It is written before those behind it, so that none of
    /// them can be ahead of it.
    async fn has_written(&self, version: u64) -> Result<bool> {
        let namespace = self.leading.namespace().unwrap_or_default();
        let kind = Kind::HttpRoute.resource();
        let name = self.leading.name_any();
        let now = self.objects.get(&kind, &namespace, &name).await?;
        let Some(now) = now.filter(|now| now.uid() == self.leading.uid()) else {
            return Ok(true);
        };
        Ok(Truth::of(&now)?.is_none_or(|truth| truth.version >= version))
    }
}

/// Completes all that is incomplete, and removes what is behind nothing.
pub(super) async fn complete_all(objects: &Objects, scope: &Scope) -> Result<()> {
    let resource = Kind::HttpRoute.resource();
    let all = objects.list(&resource, scope, INGRESS).await?;
    for object in &all {
        let Some(leading) = object.annotations().get(BEHIND) else {
            match complete(objects, object).await {
                Err(error) if error.reason() == Reason::Precondition => {
                    let namespace = object.namespace().unwrap_or_default();
                    let name = object.name_any();
                    tracing::warn!(namespace, name, %error, "the HTTPRoutes of a host are not completed");
                }
                other => other?,
            }
            continue;
        };
        let namespace = object.namespace().unwrap_or_default();
        let leads = |other: &DynamicObject| {
            other.name_any() == *leading && other.namespace() == object.namespace()
        };
        let gone = !all.iter().any(leads);
        if gone && objects.get(&resource, &namespace, leading).await?.is_none() {
            match objects.delete(&resource, object, true).await {
                Err(error) if error.reason() != Reason::Conflict => return Err(error),
                // A conflict: it has got a leading one again.
                Ok(_) | Err(_) => {}
            }
        }
    }
    Ok(())
}
