/* Keeps the live parts fresh: the server says that something changed, htmx asks for what. Without the stream,
   every five seconds. A tab that nobody sees holds no connection. */
(() => {
  const POLL_MS = 5000, AGAIN_MS = 30000, SAID_MS = 6000
  const desk = document.getElementById('desk')
  if (!desk) return
  const sign = document.getElementById('sign')
  const word = document.getElementById('sign-word')
  let source, polls, again

  const show = (state, text) => {
    if (sign.dataset.state === state) return
    sign.dataset.state = state
    word.textContent = text
  }
  const changed = () => { if (!held()) htmx.trigger(document.body, 'changed'); else missed = true }

  function poll(text) {
    show('polls', text)
    polls ??= setInterval(changed, POLL_MS)
  }

  function listen() {
    clearTimeout(again)
    if (!window.EventSource) return poll('Every 5 s')
    source = new EventSource(desk.dataset.pulse)
    source.onopen = () => {
      clearInterval(polls)
      polls = undefined
      show('live', 'Live')
    }
    source.addEventListener('changed', changed)
    source.onerror = () => {
      poll('Every 5 s')
      if (source.readyState === EventSource.CLOSED) again = setTimeout(listen, AGAIN_MS)
    }
  }

  function rest() {
    source?.close()
    clearTimeout(again)
    clearInterval(polls)
    polls = undefined
  }

  document.addEventListener('visibilitychange', () => {
    rest()
    if (document.hidden) return
    listen()
    changed()
  })
  addEventListener('pagehide', rest)
  listen()

  /* Nothing is exchanged under somebody's finger, selection or question. */
  const ask = document.getElementById('ask')
  let pressed = false, missed = false
  function held() {
    const selection = document.getSelection()
    return pressed || ask.open || (selection && !selection.isCollapsed && desk.contains(selection.anchorNode))
  }
  function release() {
    pressed = false
    if (!missed || held()) return
    missed = false
    changed()
  }
  desk.addEventListener('pointerdown', () => { pressed = true })
  for (const name of ['pointerup', 'pointercancel']) addEventListener(name, () => setTimeout(release, 0))
  ask.addEventListener('close', () => setTimeout(release, 0))
  desk.addEventListener('htmx:beforeSwap', event => {
    if (event.detail.requestConfig.verb !== 'get' || !held()) return
    event.detail.shouldSwap = false
    missed = true
  })

  /* What can hurt is asked first; a pause may say why. */
  const reason = document.getElementById('ask-reason')
  const reasonLabel = document.getElementById('ask-reason-label')
  desk.addEventListener('htmx:confirm', event => {
    const { elt, question, issueRequest } = event.detail
    if (!question) return
    event.preventDefault()
    document.getElementById('ask-title').textContent = elt.dataset.title
    document.getElementById('ask-text').textContent = question
    document.getElementById('ask-yes').textContent = elt.dataset.title.replace('?', '')
    const wantsReason = 'reason' in elt.dataset
    reasonLabel.hidden = !wantsReason
    reason.value = ''
    ask.returnValue = 'no'
    ask.showModal()
    ask.addEventListener('close', () => {
      if (ask.returnValue === 'yes') {
        if (wantsReason) {
          elt.setAttribute('hx-vals', JSON.stringify({ ...JSON.parse(elt.getAttribute('hx-vals')), reason: reason.value }))
        }
        issueRequest(true)
      }
      document.getElementById(elt.id)?.focus()
    }, { once: true })
  })

  /* What came of a click. */
  const said = document.getElementById('said')
  function say(text, bad) {
    const line = document.createElement('p')
    line.textContent = text
    line.className = bad ? 'said-bad' : ''
    said.append(line)
    setTimeout(() => line.remove(), SAID_MS)
  }
  document.body.addEventListener('said', event => say(event.detail.text, event.detail.bad))
  desk.addEventListener('htmx:responseError', event => {
    const { xhr, requestConfig } = event.detail
    if (requestConfig.verb !== 'get') return say(xhr.status === 403 ? 'You may not do that.' : `It failed (HTTP ${xhr.status}).`, true)
    show('stale', 'Not up to date')
  })
  desk.addEventListener('htmx:sendError', event => {
    if (event.detail.requestConfig.verb !== 'get') say('The dispatcher does not answer.', true)
    show('stale', 'Not up to date')
  })
  desk.addEventListener('htmx:afterSwap', () => {
    if (sign.dataset.state === 'stale') show(polls ? 'polls' : 'live', polls ? 'Every 5 s' : 'Live')
  })
})()
