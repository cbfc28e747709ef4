"""What pages that renew themselves share."""

# What renews itself every few seconds shall neither fade nor blink meanwhile.
STEADY = "<style>[data-stale=true] {opacity: 1 !important} [data-testid=stStatusWidget] {display: none}</style>"
RUNS_RENEW_S = 5
