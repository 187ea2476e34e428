/* Names and roles that unfold's templates lack: icons are hidden from screen readers, and controls that are only
   an icon, or react to a click without being a button, get a name, a role and the keyboard. */
(() => {
  const NAMES = { dock_to_right: 'Show or hide the pages', close: 'Close', cancel: 'Remove from sorting', arrow_back: 'Back' }
  const mark = root => {
    for (const icon of root.querySelectorAll('.material-symbols-outlined:not([aria-hidden="true"])')) {
      const handles = [...icon.attributes].some(({ name }) => name.startsWith('x-on:click') || name.startsWith('@click'))
      const control = handles ? icon : icon.closest('a, button, [x-on\\:click]')
      const text = icon.textContent.trim()
      if (control && !control.getAttribute('aria-label') && (handles || control.textContent.trim() === text)) {
        control.setAttribute('aria-label', control.title || NAMES[text] || text.replaceAll('_', ' '))
      }
      if (!handles) icon.setAttribute('aria-hidden', 'true')
    }
    for (const icon of root.querySelectorAll('.help-tooltip[aria-label]')) icon.setAttribute('role', 'img')
    for (const box of root.querySelectorAll('.select2-selection[role="combobox"]')) {
      const label = document.querySelector(`label[for="${box.closest('.select2').previousElementSibling?.id}"]`)
      const shown = box.querySelector('.select2-selection__rendered')
      if (!label || !shown) continue
      label.id ||= `${label.htmlFor}-label`
      for (const name of ['role', 'aria-readonly']) shown.removeAttribute(name)  // the box around it has the role
      box.setAttribute('aria-labelledby', `${label.id} ${shown.id}`)
    }
    for (const control of root.querySelectorAll('[x-on\\:click]:not(button, [href], [role], [id="changelist-filter-close"])')) {
      control.setAttribute('role', 'button')
      control.tabIndex = 0
      control.addEventListener('keydown', event => {
        if (event.target !== control || (event.key !== 'Enter' && event.key !== ' ')) return
        event.preventDefault()
        control.click()
      })
    }
  }
  document.addEventListener('DOMContentLoaded', () => mark(document))
  new MutationObserver(changes => {  // select2 and Django's lists are built by scripts, at some time after loading
    const built = changes.flatMap(({ addedNodes }) => [...addedNodes]).filter(node => node.matches?.('.select2, .selector, .help-tooltip, .selector *'))
    for (const node of built) mark(node.parentElement)
  }).observe(document.documentElement, { childList: true, subtree: true })
  /* A job's page: a live update reads out the state and every tenth percent, not each change. */
  document.addEventListener('htmx:load', () => {
    const text = document.getElementById('job-live')?.dataset.spoken
    const status = document.getElementById('job-spoken')
    if (status && text && status.textContent !== text) status.textContent = text
  })
  document.addEventListener('htmx:load', event => mark(event.detail.elt.parentElement ?? document))
})()
