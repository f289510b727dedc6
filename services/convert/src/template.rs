//! What a template can do for a group.

use drover_core::words;
use drover_proto::platform::v1::TemplateLimits;

/// Fields of a group with more nodes than its template provides for, and why.
#[must_use]
pub fn exceeded(limits: &TemplateLimits, size: u32, standby: u32) -> Vec<(&'static str, String)> {
    let nodes = |most: u32, role: &str| match most {
        0 => format!("has no {role} nodes"),
        most => format!(
            "has at most {}",
            words::count(most, &format!("{role} node"))
        ),
    };
    let mut wrong = Vec::new();
    let standby_too = limits.max_standby != Some(0);
    if let Some(most) = limits.max_size.filter(|most| size > *most) {
        let instead = if standby_too {
            "; further nodes are `standby` nodes"
        } else {
            ""
        };
        wrong.push(("size", format!("{}{instead}", nodes(most, "active"))));
    } else if let Some(most) = limits.max_size_with_standby
        && standby > 0
        && size > most
    {
        let why = format!(
            "{} in a group with standby nodes, which would not know whom to follow",
            nodes(most, "active")
        );
        wrong.push(("size", why));
    }
    if let Some(most) = limits.max_standby.filter(|most| standby > *most) {
        let instead = if most == 0 {
            "; raise `size` instead"
        } else {
            ""
        };
        wrong.push(("standby", format!("{}{instead}", nodes(most, "standby"))));
    }
    wrong
}
