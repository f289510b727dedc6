//! `drover dev` over the data of an earlier run.

use crate::home::Home;

#[test]
fn what_is_suggested_changes_no_cluster_that_is_there() {
    let home = Home::new();
    let dev = home.dev();
    let next = dev.said.last().unwrap();
    assert!(next.contains("drover init | drover apply -f -"), "{next}");
    home.succeeds("apply -f quiet.yaml --wait --server unix:api.sock");
    dev.stop();
    let dev = home.dev();
    let next = dev.said.last().unwrap();
    assert!(next.contains("drover get nodes quiet"), "{next}");
    for changes in ["drover init", "drover scale", "kill -9"] {
        assert!(!next.contains(changes), "{next}");
    }
    dev.stop();
}
