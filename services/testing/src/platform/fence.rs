use drover_core::{Reason, Result};
use drover_proto::platform::v1::{Capability, Fence, ProvisionRequest, ProvisionResponse};

use super::{
    Subject,
    fixture::{Fixture, ids, refused},
};

pub(super) async fn a_lower_epoch_is_refused(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::Fence) {
        return;
    }
    let (request, nodes) = fixture.make(1).await;
    fixture
        .raise(Fence {
            epoch: 7,
            ..fixture.fence()
        })
        .await
        .expect("a higher epoch");
    fixture
        .raise(Fence {
            epoch: 7,
            ..fixture.fence()
        })
        .await
        .expect("the same epoch again");
    let lower = Fence {
        epoch: 6,
        ..fixture.fence()
    };
    let says_the_highest = |error: drover_core::Error| {
        assert_eq!(
            error.metadata().get("epoch").map(String::as_str),
            Some("7"),
            "the highest epoch is said"
        );
    };
    says_the_highest(refused(
        fixture.raise(lower.clone()).await,
        Reason::Fenced,
        "Fence",
    ));
    let late = ProvisionRequest {
        fence: Some(lower.clone()),
        ..fixture.request(1)
    };
    says_the_highest(refused(
        fixture.provision(&late).await,
        Reason::Fenced,
        "Provision",
    ));
    let mut removal = fixture.removal(&request, &nodes[0]);
    removal.fence = Some(lower);
    says_the_highest(refused(
        fixture.deprovision(&removal).await,
        Reason::Fenced,
        "Deprovision",
    ));
    fixture.until_listed(&nodes).await;
    // A call with a higher epoch raises it too.
    let newer = ProvisionRequest {
        fence: Some(Fence {
            epoch: 9,
            ..fixture.fence()
        }),
        ..fixture.request(1)
    };
    fixture.provision(&newer).await.expect("a higher epoch");
    let same = Fence {
        epoch: 8,
        ..fixture.fence()
    };
    refused(
        fixture.raise(same).await,
        Reason::Fenced,
        "an epoch below that of a call",
    );
    fixture.clean().await;
}

pub(super) async fn shards_have_their_own_epochs(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::Fence) {
        return;
    }
    fixture
        .raise(Fence {
            epoch: 100,
            ..fixture.fence()
        })
        .await
        .expect("a higher epoch");
    fixture
        .raise(Fence {
            shard: 1,
            ..fixture.fence()
        })
        .await
        .expect("another shard of the store");
    let store_id = uuid::Uuid::new_v4().to_string();
    fixture
        .raise(Fence {
            store_id,
            ..fixture.fence()
        })
        .await
        .expect("another store");
}

pub(super) async fn a_fence_waits_for_older_calls(subject: &Subject) {
    let fixture = Fixture::new(subject).await;
    if !fixture.can(Capability::Fence) {
        return;
    }
    for round in 0..5_u64 {
        let fence = Fence {
            epoch: 10 * round + 1,
            ..fixture.fence()
        };
        let request = ProvisionRequest {
            fence: Some(fence),
            ..fixture.request(3)
        };
        let raised = async {
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            fixture
                .raise(Fence {
                    epoch: 10 * round + 2,
                    ..fixture.fence()
                })
                .await
                .expect("a higher epoch");
            fixture.nodes().await
        };
        let (answer, listed): (Result<ProvisionResponse>, _) =
            tokio::join!(fixture.provision(&request), raised);
        let made = match answer {
            Ok(answer) => ids(&answer.nodes),
            Err(error) => {
                assert_eq!(error.reason(), Reason::Fenced, "{error:?}");
                continue;
            }
        };
        let delay = fixture
            .platform
            .limits
            .as_ref()
            .and_then(|limits| limits.visibility_delay);
        if delay.is_some_and(|delay| delay.seconds == 0 && delay.nanos == 0) {
            assert!(
                ids(&listed).is_superset(&made),
                "what older calls made is seen after the fence"
            );
        }
    }
    fixture.clean().await;
}
