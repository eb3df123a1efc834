"""The real SGLang on CPU, served by us (`./tpc test --sglang`). Owner: tests."""
