//! Creation of droplets.

use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{World, catalogue, droplet::Droplet, error, unprocessable};
use crate::server::{Answer, Call};

/// Maximum number of droplets per call.
const MAX_NAMES: usize = 10;
/// Maximum size of user data in bytes.
const MAX_USER_DATA: usize = 64 << 10;
/// Maximum length of a tag or a name.
const MAX_NAME: usize = 255;

/// A validated create request.
struct Wanted {
    names: Vec<String>,
    region: String,
    size: &'static catalogue::Size,
    image: Value,
    vpc: String,
    tags: Vec<String>,
    body: Map<String, Value>,
}

impl Wanted {
    fn flag(&self, name: &str, default: bool) -> bool {
        self.body
            .get(name)
            .and_then(Value::as_bool)
            .unwrap_or(default)
    }
}

impl World {
    /// `fails`: the request is accepted, and nothing comes of it.
    pub(super) fn create(&self, call: &Call, fails: bool) -> Result<Answer, Answer> {
        let Ok(Value::Object(body)) = call.json() else {
            return Err(error(400, "bad_request", "the body is not a JSON object"));
        };
        let single = body.contains_key("name");
        let wanted = self.wanted(body)?;
        self.settle();
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.droplets.len() + wanted.names.len() > self.droplet_limit() {
            return Err(unprocessable(
                "creating this/these droplet(s) will exceed your droplet limit",
            ));
        }
        if self.room(&state, &wanted.region) < wanted.names.len() {
            return Err(unprocessable("Region is not available"));
        }
        let tags: Vec<String> = wanted.tags.iter().map(|tag| state.tag(tag)).collect();
        let (mut droplets, mut actions) = (Vec::new(), Vec::new());
        let common = &self.settings.common;
        for name in &wanted.names {
            let droplet = Droplet {
                id: state.next_droplet(),
                name: name.clone(),
                tags: tags.clone(),
                tagged: now + self.settings.tag_delay,
                region: wanted.region.clone(),
                size: wanted.size.slug,
                image: wanted.image.clone(),
                vpc: wanted.vpc.clone(),
                made: now,
                visible: now + common.visibility_delay,
                active: now + common.pending_delay,
                off: None,
                gone: fails.then(|| now + common.pending_delay),
                locked: false,
                ipv6: wanted.flag("ipv6", false),
                backups: wanted.flag("backups", false),
                monitoring: wanted.flag("monitoring", false),
                public: wanted.flag("public_networking", true),
                foreign: false,
            };
            self.record(&droplet);
            let action = state.act(
                "create",
                droplet.id,
                &droplet.region,
                now,
                common.pending_delay,
            );
            if let Some(action) = state.actions.get_mut(&action) {
                action.errs = fails;
            }
            // The status is always `new` in this response, even without a pending delay.
            let mut shown = self.droplet_json(&droplet, now);
            shown["status"] = json!("new");
            shown["networks"] = json!({"v4": [], "v6": []});
            droplets.push(shown);
            actions.push(json!({
                "id": action, "rel": "create",
                "href": format!("https://api.digitalocean.com/v2/actions/{action}"),
            }));
            state.names.insert(droplet.id, droplet.name.clone());
            state.droplets.insert(droplet.id, droplet);
        }
        let links = json!({"actions": actions});
        let answer = match (single, droplets.first()) {
            (true, Some(droplet)) => json!({"droplet": droplet, "links": links}),
            _ => json!({"droplets": droplets, "links": links}),
        };
        Ok(Answer::json(202, &answer))
    }

    /// Number of droplets that still fit into a region.
    pub(super) fn room(&self, state: &super::State, region: &str) -> usize {
        let Some(capacity) = self.settings.common.capacity.get(region) else {
            return usize::MAX;
        };
        let there = state
            .droplets
            .values()
            .filter(|droplet| droplet.region == region);
        capacity.saturating_sub(there.count())
    }

    fn wanted(&self, body: Map<String, Value>) -> Result<Wanted, Answer> {
        let names = names(&body)?;
        let text = |key: &str| body.get(key).and_then(Value::as_str);
        let size = text("size")
            .and_then(catalogue::Size::find)
            .ok_or_else(|| unprocessable("You specified an invalid size for Droplet creation."))?;
        let image = match body.get("image") {
            Some(Value::String(slug)) => self.find_image(slug),
            Some(Value::Number(id)) => self.find_image(&id.to_string()),
            _ => None,
        }
        .ok_or_else(|| unprocessable("You specified an invalid image for Droplet creation."))?;
        let region = self.region(text("region").unwrap_or_default(), size, names.len())?;
        let disk = image["min_disk_size"].as_u64().unwrap_or_default();
        if disk > u64::from(size.disk) {
            return Err(unprocessable(
                "This image requires a larger disk than the size that you specified has.",
            ));
        }
        self.check_keys(&body)?;
        if text("user_data").is_some_and(|data| data.len() > MAX_USER_DATA) {
            return Err(unprocessable(
                "User data is too long (maximum is 65536 bytes)",
            ));
        }
        let state = self.state.lock();
        let vpc = match text("vpc_uuid") {
            None => state.default_vpc(&region).unwrap_or_default(),
            Some(id) => match state.vpcs.iter().find(|vpc| vpc.id == id) {
                None => return Err(unprocessable("VPC not found")),
                Some(vpc) if vpc.region != region => {
                    return Err(unprocessable("VPC is not in the region of the Droplet"));
                }
                Some(vpc) => vpc.id.clone(),
            },
        };
        drop(state);
        let tags = tags(&body)?;
        Ok(Wanted {
            names,
            region,
            size,
            image,
            vpc,
            tags,
            body,
        })
    }

    /// Resolves a region by slug or slug prefix, or picks any.
    fn region(&self, wanted: &str, size: &catalogue::Size, count: usize) -> Result<String, Answer> {
        let slugs = catalogue::REGIONS.iter().map(|(slug, _)| *slug);
        let exact: Vec<&str> = slugs.clone().filter(|slug| *slug == wanted).collect();
        let fitting: Vec<&str> = if exact.is_empty() {
            slugs.filter(|slug| slug.starts_with(wanted)).collect()
        } else {
            exact
        };
        if fitting.is_empty() {
            return Err(unprocessable(
                "You specified an invalid region for Droplet creation.",
            ));
        }
        let sold: Vec<&str> = fitting
            .into_iter()
            .filter(|slug| size.sold_in(slug))
            .collect();
        let state = self.state.lock();
        let room = sold.iter().find(|slug| self.room(&state, slug) >= count);
        room.or(sold.first())
            .map(|slug| (*slug).to_owned())
            .ok_or_else(|| unprocessable("Size is not available in this region."))
    }

    fn check_keys(&self, body: &Map<String, Value>) -> Result<(), Answer> {
        let keys = body.get("ssh_keys").and_then(Value::as_array);
        for key in keys.into_iter().flatten() {
            let name = key.as_str().map_or_else(|| key.to_string(), str::to_owned);
            if self.key(&name).is_err() {
                return Err(unprocessable(&format!(
                    "{name} are invalid key identifiers for Droplet creation."
                )));
            }
        }
        Ok(())
    }
}

fn names(body: &Map<String, Value>) -> Result<Vec<String>, Answer> {
    let all = match (body.get("name"), body.get("names")) {
        (Some(name), None) => vec![name.clone()],
        (None, Some(Value::Array(names))) if !names.is_empty() => names.clone(),
        _ => return Err(unprocessable("Name can't be blank")),
    };
    if all.len() > MAX_NAMES {
        return Err(unprocessable(
            "You can only create up to 10 Droplets at the same time.",
        ));
    }
    let all: Vec<String> = all
        .iter()
        .filter_map(|name| name.as_str().map(str::to_owned))
        .collect();
    let valid = |name: &String| {
        let of_hostname = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-';
        !name.is_empty()
            && name.len() <= MAX_NAME
            && name.chars().all(of_hostname)
            && !name.ends_with(['.', '-'])
    };
    if all.is_empty() || !all.iter().all(valid) {
        return Err(unprocessable(
            "Only valid hostname characters are allowed. (a-z, A-Z, 0-9, . and -)",
        ));
    }
    Ok(all)
}

fn tags(body: &Map<String, Value>) -> Result<Vec<String>, Answer> {
    let Some(tags) = body.get("tags").and_then(Value::as_array) else {
        return Ok(Vec::new());
    };
    tags.iter()
        .map(|tag| {
            let name = tag.as_str().unwrap_or_default();
            if is_tag(name) {
                Ok(name.to_owned())
            } else {
                Err(unprocessable(&format!(
                    "tag-name {name:?} contains invalid characters"
                )))
            }
        })
        .collect()
}

pub(super) fn is_tag(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, ':' | '-' | '_');
    (1..=MAX_NAME).contains(&name.len()) && name.chars().all(allowed)
}
