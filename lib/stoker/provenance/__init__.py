"""An extra: which documents a step saw, which steps saw a document, and the order between them."""
