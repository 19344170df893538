"""Makes src/signature/vectors.json with the official Python libraries `stripe` and `standardwebhooks`.

    python3 -m venv DIR && DIR/bin/pip install stripe==16.1.0 standardwebhooks==1.1.0
    DIR/bin/python scripts/signature-vectors.py > src/signature/vectors.json
"""

import base64
import importlib.metadata
import json
from datetime import datetime, timezone

import standardwebhooks
import stripe

BODIES = [
    '{"id":"evt_1","type":"charge.succeeded","amount_minor":4999}',
    '{ "id" : "evt_2",\n  "type":"charge.updated", "note":"Zw\u00f6lf \u20ac, \u96ea" }\n',
    "",
]
AT = 1796115600


def by_stripe(number, body):
    secret = f"whsec_{base64.b64encode(bytes([number] * 24)).decode()}"
    signature = stripe.WebhookSignature._compute_signature(f"{AT}.{body}", secret)
    header = f"t={AT},v1={signature}"
    # The library must believe its own header; its clock is ours, so without a tolerance.
    stripe.WebhookSignature.verify_header(body, header, secret)
    return {"scheme": "stripe", "secret": secret, "headers": {"stripe-signature": header}}


def by_standard_webhooks(number, body):
    secret = f"whsec_{base64.b64encode(bytes([number] * 24)).decode()}"
    at = datetime.fromtimestamp(AT, tz=timezone.utc)
    signature = standardwebhooks.Webhook(secret).sign(f"msg_{number}", at, body)
    headers = {
        "webhook-id": f"msg_{number}",
        "webhook-timestamp": str(AT),
        "webhook-signature": signature,
    }
    return {"scheme": "standard", "secret": secret, "headers": headers}


vectors = []
for make in (by_stripe, by_standard_webhooks):
    for number, body in enumerate(BODIES, start=1):
        common = {"id": f"msg_{number}", "timestamp_secs": AT, "body": body}
        vectors.append({**make(number, body), **common})
made_by = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("stripe", "standardwebhooks"))
print(json.dumps({"made_by": f"scripts/signature-vectors.py with {made_by}", "vectors": vectors}, indent=2))
