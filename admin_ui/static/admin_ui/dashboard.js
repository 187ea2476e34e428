/* Keeps the live parts of the dashboard fresh: the event stream signals a change, and htmx reloads the parts.
   Without the stream they are reloaded every five seconds. A hidden tab holds no connection. */
(() => {
  const POLL_MS = 5000, RECONNECT_MS = 30000, TOAST_MS = 6000
  const dashboard = document.getElementById('dashboard')
  if (!dashboard) return
  const freshness = document.getElementById('freshness')
  const freshnessText = document.getElementById('freshness-text')
  let source, pollTimer, reconnectTimer

  const showFreshness = (state, text) => {
    if (freshness.dataset.state === state) return
    freshness.dataset.state = state
    freshnessText.textContent = text
  }
  const refresh = () => { if (!isInUse()) htmx.trigger(document.body, 'changed'); else refreshPending = true }

  function poll() {
    showFreshness('polls', 'Every 5 s')
    pollTimer ??= setInterval(refresh, POLL_MS)
  }

  function connect() {
    clearTimeout(reconnectTimer)
    if (!window.EventSource) return poll()
    source = new EventSource(dashboard.dataset.pulse)
    source.onopen = () => {
      clearInterval(pollTimer)
      pollTimer = undefined
      showFreshness('live', 'Live')
    }
    source.addEventListener('changed', refresh)
    source.onerror = () => {
      poll()
      if (source.readyState === EventSource.CLOSED) reconnectTimer = setTimeout(connect, RECONNECT_MS)
    }
  }

  function disconnect() {
    source?.close()
    clearTimeout(reconnectTimer)
    clearInterval(pollTimer)
    pollTimer = undefined
  }

  document.addEventListener('visibilitychange', () => {
    disconnect()
    if (document.hidden) return
    connect()
    refresh()
  })
  addEventListener('pagehide', disconnect)
  connect()

  /* No part is replaced while the user presses a button, selects text or has a dialog open. */
  const dialog = document.getElementById('confirm')
  let isPressed = false, refreshPending = false
  function isInUse() {
    const selection = document.getSelection()
    const isSelecting = selection && !selection.isCollapsed && dashboard.contains(selection.anchorNode)
    return isPressed || dialog.open || isSelecting
  }
  function release() {
    isPressed = false
    if (!refreshPending || isInUse()) return
    refreshPending = false
    refresh()
  }
  dashboard.addEventListener('pointerdown', () => { isPressed = true })
  for (const name of ['pointerup', 'pointercancel']) addEventListener(name, () => setTimeout(release, 0))
  dialog.addEventListener('close', () => setTimeout(release, 0))
  dashboard.addEventListener('htmx:beforeSwap', event => {
    if (event.detail.requestConfig.verb !== 'get' || !isInUse()) return
    event.detail.shouldSwap = false
    refreshPending = true
  })

  /* Confirmation dialog of buttons with `hx-confirm`; with `data-reason` it has a field for a reason. */
  const reason = document.getElementById('confirm-reason')
  const reasonLabel = document.getElementById('confirm-reason-label')
  dashboard.addEventListener('htmx:confirm', event => {
    const { elt, question, issueRequest } = event.detail
    if (!question) return
    event.preventDefault()
    document.getElementById('confirm-title').textContent = elt.dataset.title
    document.getElementById('confirm-text').textContent = question
    document.getElementById('confirm-yes').textContent = elt.dataset.title.replace('?', '')
    const hasReason = 'reason' in elt.dataset
    reasonLabel.hidden = !hasReason
    reason.value = ''
    dialog.returnValue = 'no'
    dialog.showModal()
    dialog.addEventListener('close', () => {
      if (dialog.returnValue === 'yes') {
        if (hasReason) {
          elt.setAttribute('hx-vals', JSON.stringify({ ...JSON.parse(elt.getAttribute('hx-vals')), reason: reason.value }))
        }
        issueRequest(true)
      }
      document.getElementById(elt.id)?.focus()
    }, { once: true })
  })

  /* Toasts: the outcome of a click. */
  const toasts = document.getElementById('toasts')
  function toast(text, isBad) {
    const line = document.createElement('p')
    line.textContent = text
    line.className = isBad ? 'toast-bad' : ''
    toasts.append(line)
    setTimeout(() => line.remove(), TOAST_MS)
  }
  document.body.addEventListener('toast', event => toast(event.detail.text, event.detail.bad))
  dashboard.addEventListener('htmx:responseError', event => {
    const { xhr, requestConfig } = event.detail
    if (requestConfig.verb !== 'get') {
      const text = xhr.status === 403
        ? 'Your account has no permission for this.'
        : `The request failed (HTTP ${xhr.status}). Reload the page and try again.`
      return toast(text, true)
    }
    showFreshness('stale', 'Out of date')
  })
  dashboard.addEventListener('htmx:sendError', event => {
    if (event.detail.requestConfig.verb !== 'get') toast('The dispatcher does not answer. Try again.', true)
    showFreshness('stale', 'Out of date')
  })
  dashboard.addEventListener('htmx:afterSwap', () => {
    if (freshness.dataset.state !== 'stale') return
    if (pollTimer) showFreshness('polls', 'Every 5 s')
    else showFreshness('live', 'Live')
  })
})()
