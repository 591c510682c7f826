"""The kubelet's device plugin for memory of cards: pods ask for it, and their programs keep to it.

`vramkit cluster kubernetes-plugin` runs it; see docs/kubernetes.md.
"""
