"""The Dispatcher: the cluster's front desk."""
